"""The page of a task with a known answer: sentence, figures and charts are of all explanations of the run."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphmask import methods
from graphmask.experiments import gold, relay
from graphmask.experiments.task_page import write_task_page


@pytest.fixture(scope="module")
def run() -> Any:
    """Random choices for an untrained model, on 24 graphs."""
    test = relay.generate(24, seed=5, batch_size=8)
    explainer = methods.get("random")(relay.make(seed=0).eval(), seed=0)
    found = list(explainer.explain_all(test, repair=False, allow_infeasible=True))
    figures = {"seed": 0, "gold": gold.compare(found, test)}
    return SimpleNamespace(explainer=explainer, explanations=found, figures=figures, test=test)


def test_the_top_is_about_all_explanations(run: Any, tmp_path: Path) -> None:
    page = write_task_page(tmp_path / "relay.html", run, "relay", examples=3).read_text()
    kept = torch.cat([explanation.kept for explanation in run.explanations], 1)
    carried = torch.cat([explanation.carried for explanation in run.explanations], 1)
    share = 100 * float(kept.sum()) / float(carried.sum())
    (sentence,) = re.findall(r'<p class="verdict">(.*?)</p>', page, re.S)
    assert sentence.startswith(f"In these 24 graphs the model keeps {share:.1f}% of its messages.")
    assert len(re.findall(r'<article class="card"', page)) == 3
    assert "3 further graphs" in page
    assert "The figures above are for 24 other graphs" in page


def test_a_chart_says_how_much_is_kept_of_what_is_needed_and_of_the_rest(run: Any, tmp_path: Path) -> None:
    page = write_task_page(tmp_path / "relay.html", run, "relay", examples=1).read_text()
    titles = re.findall(r"<figure.*?<h2>(.*?)</h2>", page, re.S)
    assert titles == ["Kept, of what is needed and of the rest", "Against the known answer"]
    drawn = re.findall(r"<g><title>(needed|not needed): ([\d,]+) of ([\d,]+)</title>", page)
    kept = torch.cat([explanation.kept for explanation in run.explanations], 1)
    carried = torch.cat([explanation.carried for explanation in run.explanations], 1)
    needed = torch.cat([batch.gold for batch in run.test]).t().bool()
    wanted = []
    for site in range(2):
        for kind, edges in (("needed", needed[site]), ("not needed", carried[site] & ~needed[site])):
            wanted.append((kind, f"{int((kept[site] & edges).sum()):,}", f"{int(edges.sum()):,}"))
    assert drawn == wanted
    assert needed[0].sum() != needed[1].sum()


def test_answers_have_names(run: Any, tmp_path: Path) -> None:
    page = write_task_page(tmp_path / "relay.html", run, "relay", examples=1).read_text()
    assert re.findall(r'<th scope="row" title="(\w+)">', page) == ["no", "yes"]
