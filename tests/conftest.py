"""One thread and a quiet, repeatable hypothesis: the same numbers on every machine, and no fight over its cores."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start
#: Read when PyTorch is loaded. Where two threads share one core, one that waits for the other must not keep it busy.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile(
    "graphmask", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("graphmask")

HERE = Path(__file__).parent
#: Tests that train models for long, start processes or drive a browser, by file or by name. `make check` omits them.
SLOW = {
    "devices/test_devices.py",
    "faults/test_faults.py::test_some_seconds_of_fuzz",
    "faults/test_faults.py::test_a_few_kills",
    "attention/test_texts.py",
    "attention/test_white_box.py",
    "bench/test_battery.py",
    "bench/test_battery_figures.py",
    "bench/test_leaderboard.py",
    "hetero/test_known_answer.py",
    "comparing/test_compare.py",
    "comparing/test_white_boxes.py",
    "hetero/test_laws.py",
    "laws/test_certificate.py",
    "laws/test_implementations.py",
    "laws/test_properties.py",
    "laws/test_reproducible.py",
    "laws/test_symmetry.py",
    "laws/test_untouched.py",
    "methods/test_erasure_search.py::test_greedy_search_of_a_regression",
    "methods/test_erasure_search.py::test_many_candidates_of_one_graph_at_once_or_one_of_many_graphs",
    "methods/test_laws.py",
    "report/test_accessible.py",
    "report/test_browser.py",
    "report/test_browser_comparison.py",
    "report/test_browser_question.py",
    "report/test_browser_sentence.py",
    "report/test_figures.py",
    "report/test_large.py",
    "report/test_question.py",
    "store/test_compaction.py",
    "store/test_processes.py",
    "store/test_resume.py",
    "tasks/qa/test_experiment.py",
    "tasks/srl/test_conll09.py",
    "tasks/srl/test_conll09_errors.py",
    "tasks/srl/test_experiment.py",
    "tasks/test_relay.py",
    "tasks/test_sequences.py::test_a_transformer_learns_to_recall_and_default_settings_find_what_it_attends_to",
    "tasks/test_star_graphs.py",
    "test_analyse.py",
    "test_any_task.py",
    "test_bars.py::test_long_steps_of_commands_show_a_bar",
    "test_bench.py",
    "test_bench_store.py",
    "test_checkpoint.py",
    "test_cli.py",
    "test_compare.py",
    "test_distributed.py",
    "test_docs.py",
    "test_examples.py",
    "test_from_elsewhere.py",
    "test_holds.py",
    "test_import.py",
    "test_moved.py",
    "test_notebooks.py::test_it_runs",
    "test_numbers.py::test_ten_million_edges",
    "test_numbers.py::test_the_number_of_threads_changes_no_fit",
    "test_repair.py",
    "test_stranger.py",
}
#: What takes longest, or is prepared once for several tests, comes first. Of two processes the one that is done takes
#: tests from the end of the other's list: these are then neither the last to end nor divided among both.
FIRST = (
    "tasks/test_relay.py",
    "test_cli.py::test_run_relay_keeps_the_gold_at_both_sites",
    "devices/test_devices.py",
    "test_notebooks.py::test_it_runs",
    "test_examples.py",
    "test_distributed.py",
    "test_any_task.py",
    "attention/test_white_box.py",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest tests come first. Slow ones get their marker.

    Where lines are counted, slow tests are not traced unless `make coverage` asks for it.
    """
    untraced = config.pluginmanager.hasplugin("_cov") and "TRACE_SLOW_TESTS" not in os.environ
    places: dict[pytest.Item, int] = {}
    for item in items:
        if item.path.is_relative_to(HERE):
            file = item.path.relative_to(HERE).as_posix()
            names = file, f"{file}::{getattr(item, 'originalname', item.name)}"
            places[item] = min((FIRST.index(name) for name in names if name in FIRST), default=len(FIRST))
            if not SLOW.isdisjoint(names):
                item.add_marker(pytest.mark.slow)
                if untraced:
                    item.add_marker(pytest.mark.no_cover)
    items.sort(key=lambda item: places.get(item, len(FIRST)))
