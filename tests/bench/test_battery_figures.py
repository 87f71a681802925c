"""The battery's figures count right, and a run goes on where it was."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from typer.testing import CliRunner

import graphmask
from graphmask.cli import app
from graphmask.errors import GraphMaskError
from graphmask.experiments.bench.battery import (
    entry,
    learning,
    masks,
    measure,
    pages,
    run,
    white_boxes,
)
from graphmask.experiments.bench.battery.models import ENTRIES
from graphmask.experiments.bench.battery.summary import summary, verdicts
from graphmask.explanation import Explanation
from graphmask.fitting.recipe import PAPER
from graphmask.fitting.training import Recipe
from graphmask.graphs.sites import Site

# Figures -------------------------------------------------------------------------------------------------------


def explanation(kept: list[list[int]], scores: list[list[float]]) -> Explanation:
    gates = torch.tensor(kept).bool()
    sites = tuple(Site(f"layer {n}", f"conv{n}", (n,)) for n in range(len(gates)))
    edges = torch.zeros(2, gates.shape[1], dtype=torch.long)
    output = torch.zeros(1, 2)
    return Explanation(
        edges, gates, torch.tensor(scores), torch.ones_like(gates), output, output, 0.0, 0.0, 0.03, sites, (), 1
    )


def test_agreement_with_gold_by_hand() -> None:
    first = explanation([[1, 1, 0], [0, 0, 0]], [[0.9, 0.8, 0.1], [0.2, 0.3, 0.0]])
    second = explanation([[0, 1], [1, 1]], [[0.4, 0.7], [0.6, 0.9]])
    layered = [torch.tensor([[1, 0, 0], [0, 1, 0]]).bool(), torch.tensor([[0, 1], [0, 1]]).bool()]
    found = measure.against([first, second], layered)
    assert found is not None
    # Five kept, four true, three both: (0,0) of the first, (0,1) and (1,1) of the second.
    assert found["precision"] == pytest.approx(60)
    assert found["recall"] == pytest.approx(75)
    assert found["f1"] == pytest.approx(200 * 3 / 9)
    # True scores .9 .3 .7 .9 against .8 .1 .2 .0 .4 .6: six, three, five and six of six are lower.
    assert found["auc"] == pytest.approx((6 + 3 + 5 + 6) / 24)
    assert found["per_site"][0]["precision"] == pytest.approx(200 / 3)
    assert found["per_site"][1]["recall"] == pytest.approx(50)
    # Edges at any layer: kept 1 1 0 and 1 1, highest scores .9 .8 .1 and .6 .9; the second has no gold.
    whole = measure.against([first, second], [torch.tensor([1, 0, 0]).bool(), None])
    assert whole is not None
    assert (whole["graphs"], whole["precision"], whole["recall"], whole["auc"]) == (1, 50, 100, 1)
    noise = [torch.tensor([[0, 0, 1], [0, 0, 0]]).bool(), torch.tensor([[1, 0], [1, 0]]).bool()]
    against_noise = measure.against([first, second], layered, noise)
    assert against_noise is not None
    assert against_noise["noise_auc"] == pytest.approx((3 + 1 + 3 + 3) / 12)
    assert measure.against([first], None) is None
    assert measure.against([first], [None]) is None


def test_kappa_of_packed_masks_by_hand() -> None:
    one = torch.tensor([[1, 0, 1, 0, 1], [1, 1, 0, 0, 1]]).bool()
    other = torch.tensor([[1, 0, 0, 1, 0], [1, 1, 0, 0, 0]]).bool()
    carried = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 0]]).bool()  # the last edge does not count
    packed = [masks.packed(gates, carried) for gates in (one, other)]
    assert torch.equal(masks.unpack(packed[0]["kept"], packed[0]["shape"]), one)
    per_site, total = masks.kappa(packed)
    # First site: two of four agree, half are open, so half would agree by chance. Second: all agree. Together: 3/4.
    assert per_site == [pytest.approx(0), pytest.approx(1)]
    assert total == pytest.approx(0.5)
    assert masks.kappa(packed[:1]) == ([], None)
    with pytest.raises(GraphMaskError, match="same messages"):
        masks.kappa([packed[0], masks.packed(one, ~carried)])


def test_what_an_open_site_needs_is_what_replacing_a_tenth_of_it_costs() -> None:
    model = white_boxes.Count().eval()
    loader = learning.loader(white_boxes.draw("count", 60, seed=1), 20)
    explainer = graphmask.GraphMask(model, divergence="mse", recipe=Recipe(steps=1, start="zero"))
    explainer.fit(loader, epochs=1, progress=False)
    assert explainer.probe is not None
    for baseline in explainer.probe.baselines:
        baseline.data.zero_()
    found = measure.needed(explainer, loader, [0, 1])
    rng, squares = torch.Generator().manual_seed(0), torch.zeros(2)
    for batch in loader:
        graph = batch.batch[batch.edge_index[0]]
        for site in (0, 1):  # a needed message that is replaced by zero lowers the count by one
            lost = batch.gold[:, site] & (torch.rand(batch.num_edges, generator=rng) < measure.TENTH)
            squares[site] += torch.zeros(20).index_add(0, graph, lost.float()).square().sum()
    for site in (0, 1):
        assert found[str(site)]["divergence"] == pytest.approx(float(squares[site]) / 60, rel=1e-4)
        assert found[str(site)]["needed"] is (float(squares[site]) / 60 > 0.03)
    assert measure.needed(explainer, loader, []) == {}


def result(name: str, seed: int, kept: Tensor, **more: Any) -> dict[str, Any]:
    shares = kept.float().mean(1).tolist()
    figures = {"divergence": 0.01, "flips": 0.0, "within": 1.0, "feasible": True, "steps": 10, "wall_seconds": 2.0}
    repaired = {"kept": 0.5, "kept_before": 0.25, "within": 1.0, "flips": 0.0, "flips_before": 0.1, "divergence": 0.0}
    about = {"sites": ["a", "b"], "graphs": 1, "tolerance": 0.03, "score": {"accuracy": 0.9}, "train_cpu_seconds": 4.0}
    opened = {str(s): {"divergence": 1.0, "needed": s == 0} for s, share in enumerate(shares) if share >= measure.OPEN}
    found = {"name": name, "seed": seed, "kept_per_site": shares, "kept": float(kept.float().mean())}
    found |= {"open": list(map(int, opened)), "open_needed": opened, "repaired": repaired, "gold": None, "audits": {}}
    found |= {"fit_cpu_seconds": 8.0, "fit_over_training": 2.0, "masks": masks.packed(kept, torch.ones_like(kept))}
    return {**figures, **about, **found, **more}


def test_summary_over_seeds_by_hand() -> None:
    one, other = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]]).bool(), torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1]]).bool()
    runs = [result("nodes_gcn", 0, one), result("nodes_gcn", 1, other, divergence=0.05, fit_over_training=6.0)]
    failed = {"name": "links", "seed": 0, "error": "ValueError: no"}
    found = summary({"nodes_gcn": runs, "links": [failed]})
    about = found["models"]["nodes_gcn"]
    assert about["kept_per_site"] == [1.0, 0.625]
    assert about["figures"]["kept"] == {"mean": 0.8125, "low": 0.625, "high": 1.0}
    assert about["figures"]["gold.f1"] is None
    assert about["open"] == {"sites": 3, "needed": 2}
    # The first site has no disagreement; in the second one of four agrees, five eighths are open.
    chance = (5 / 8) ** 2 + (3 / 8) ** 2
    assert about["kappa_per_site"] == [pytest.approx(1), pytest.approx((1 / 4 - chance) / (1 - chance))]
    assert all("masks" not in line for line in about["runs"])
    assert found["models"]["links"]["errors"] == {"0": "ValueError: no"}
    told = dict(verdicts(found))
    assert told["sites thrown open without need, over all fits"] == {"design": "1"}
    assert told["fits with a mean divergence on test within tolerance"] == {"design": "1 of 2"}
    assert told["models whose fit takes at most 3 times the CPU of their training"] == {"design": "0 of 1"}
    page = pages.markdown(found)
    assert "| `nodes_gcn` | 100% / 62% | 81.2% (62.5% to 100.0%) | 3 (2) | 1.00 / -0.60 |" in page
    assert "| `nodes_gcn` | 0.0300 (0.0100 to 0.0500) | 100% | 0.0% | 100% | 10.0% to 0.0% | 25.0% to 50.0% |" in page
    assert "Fits per model: 0 to 2." in page
    assert "| `links` | 0 | ValueError: no |" in page
    json.dumps(found)


BEGIN, END = pages.BEGIN.format("battery"), pages.END.format("battery")


def test_tables_are_put_between_the_markers_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Before.\n\n{BEGIN}\nold\n{END}\n\nAfter.\n")
    for _ in range(2):
        pages.refresh(page, "new\n\n")
        assert page.read_text() == f"Before.\n\n{BEGIN}\n\nnew\n\n{END}\n\nAfter.\n"
    page.write_text("Nothing here.\n")
    with pytest.raises(GraphMaskError, match="Expected the lines"):
        pages.refresh(page, "new")
    pages.refresh(tmp_path / "other.md", "new\n")
    assert "new" in (tmp_path / "other.md").read_text()


# Running -------------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds that are really measured, in order; with one epoch, whatever is asked for."""
    seeds: list[int] = []

    def quick(prepared: entry.Prepared, seed: int, **settings: Any) -> dict[str, Any]:
        seeds.append(seed)
        prepared.test = prepared.test[:1]
        prepared.gold = (prepared.gold or [])[: white_boxes.BATCH]
        return measure.measure(prepared, seed, epochs=1, recipe=settings["recipe"])

    monkeypatch.setattr(run, "measure", quick)
    monkeypatch.setattr(white_boxes, "TRAIN", 100)
    return seeds


def test_what_is_there_is_not_measured_again(measured: list[int], tmp_path: Path) -> None:
    def go(*seeds: int) -> list[dict[str, Any]]:
        return run.measure_all(["white_count"], seeds, tmp_path, progress=False)["white_count"]

    first = go(0, 1)
    assert measured == [0, 1]
    assert go(0, 1) == first
    assert measured == [0, 1]
    path = run.result_path(tmp_path, "white_count", 1)
    path.write_text(path.read_text()[: len(path.read_text()) // 2])  # a copy that broke off
    again = go(0, 1, 2)
    assert measured == [0, 1, 1, 2]
    changing = {"fit_cpu_seconds", "wall_seconds"}
    assert {k: v for k, v in again[1].items() if k not in changing} == {
        k: v for k, v in first[1].items() if k not in changing
    }
    run.measure_all(["white_count"], [0], tmp_path, epochs=7, progress=False)  # other settings are another result
    assert measured == [0, 1, 1, 2, 0]
    paper = run.measure_all(["white_count"], [1], tmp_path, recipe=PAPER, fits="fits-paper", progress=False)
    assert measured == [0, 1, 1, 2, 0, 1]
    assert run.read_json(run.result_path(tmp_path, "white_count", 1, "fits-paper"))["recipe"]["sampled"]
    assert paper["white_count"][0]["kept"] != again[1]["kept"]
    assert go(1) == again[1:2]
    about = summary({"white_count": again})["models"]["white_count"]
    assert len(about["kappa_per_site"]) == 2
    assert about["fits"] == 3


def test_a_fit_that_fails_is_an_error_row_and_is_tried_again(
    measured: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine = run.measure

    def fails(prepared: entry.Prepared, seed: int, **settings: Any) -> dict[str, Any]:
        if seed == 0:
            raise GraphMaskError("Expected luck, got none.")
        return fine(prepared, seed, **settings)

    monkeypatch.setattr(run, "measure", fails)
    found = run.measure_all(["white_count"], [0, 1], tmp_path, progress=False)["white_count"]
    assert found[0]["error"] == "GraphMaskError: Expected luck, got none."
    assert "error" not in found[1]
    monkeypatch.setattr(run, "measure", fine)
    found = run.measure_all(["white_count"], [0, 1], tmp_path, progress=False)["white_count"]
    assert "error" not in found[0]
    assert measured == [1, 0]


def test_a_process_that_dies_takes_one_fit_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these processes does its first task, writes nothing for it, and dies at the second."""
    started: list[list[str]] = []
    whole = run.subprocess.Popen

    def short_lived(command: list[str], **options: Any) -> Any:
        started.append(command)
        code = "import sys; sys.stdin.readline(); print('done', flush=True); sys.stdin.readline(); sys.exit(1)"
        return whole([sys.executable, "-c", code], **options)

    monkeypatch.setattr(run.subprocess, "Popen", short_lived)
    found = run.measure_all(["white_count"], range(6), tmp_path, jobs=2, progress=False)["white_count"]
    assert started[0][1:] == ["-m", "graphmask.experiments.bench.battery.run"]
    ended = [line for line in found if "ended before it was done" in line["error"]]
    assert len(ended) in (2, 3)
    assert len(started) >= 4


def test_a_worker_measures(tmp_path: Path) -> None:
    worker = run.Worker()
    try:
        task = {"name": "white_count", "seed": 3, "out": str(tmp_path), "fits": "fits", "epochs": 1, "recipe": None}
        assert worker.perform(task)
    finally:
        worker.stop()
    found = run.known(task)
    assert found is not None
    assert found["steps"] >= 40  # more if drawn out
    assert run.known({**task, "epochs": None}) is None


def test_a_model_is_trained_once(tmp_path: Path) -> None:
    trained, size = [], [1]

    def make(seed: int) -> entry.Prepared:
        torch.manual_seed(seed)
        model = nn.Linear(2, 1)

        def learn() -> None:
            trained.append(seed)
            nn.init.constant_(model.weight, 7.0)

        data = Data(x=torch.zeros(1, size[0]), edge_index=torch.zeros(2, 0, dtype=torch.long))
        return entry.Prepared(model, [data], [], [], lambda: {"weight": model.weight[0, 0].item()}, learn=learn)

    one, path = entry.Entry("one", "design", "nodes", "A line.", make), tmp_path / "one.safetensors"
    first, second = one.prepare(0, path), one.prepare(0, path)
    assert trained == [0]
    assert first.score == second.score == {"weight": 7.0}
    assert torch.equal(first.model.weight, second.model.weight)
    assert second.train_cpu_seconds == first.train_cpu_seconds
    assert not second.model.training
    path.write_bytes(path.read_bytes()[:-3])
    assert one.prepare(0, path).score == {"weight": 7.0}
    assert one.prepare(1, path).score == {"weight": 7.0}  # another seed is another model
    size[0] = 2
    assert one.prepare(1, path).score == {"weight": 7.0}  # and so are other data
    assert trained == [0, 0, 1, 1]


def test_the_command(measured: list[int], tmp_path: Path) -> None:
    page, figures = tmp_path / "battery.md", tmp_path / "battery.json"
    given = [
        "--models",
        "white_count",
        "--seeds",
        "2",
        "--seed-start",
        "3",
        "--jobs",
        "1",
        "--out",
        str(tmp_path / "o"),
    ]
    done = CliRunner().invoke(app, ["bench", "battery", *given, "--json", str(figures), "--markdown", str(page)])
    assert done.exit_code == 0, done.output
    assert measured == [3, 4]
    found = json.loads(figures.read_text())["models"]["white_count"]
    assert found["fits"] == 2
    assert found["kappa"] is not None
    assert found["half"] == "design"
    assert "| `white_count` |" in page.read_text()
    refused = CliRunner().invoke(app, ["bench", "battery", "--models", "mnist"])
    assert isinstance(refused.exception, GraphMaskError) or refused.exit_code != 0


def test_every_table_names_every_model() -> None:
    table = pages.models_table()
    assert all(f"| `{name}` | {one.half} |" in table for name, one in ENTRIES.items())
    assert all(one.about.endswith((".", "epochs.")) and len(one.about) > 40 for one in ENTRIES.values())
