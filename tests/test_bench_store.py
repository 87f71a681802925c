"""The benchmark of the store, and what it is for: tables of a store are those of its explanations in a list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from graphmask import GraphMaskError, analysis, store
from graphmask.analysis import everything, side_by_side
from graphmask.experiments.bench import kills, load, resident
from graphmask.experiments.bench import store as bench
from graphmask.store import reading, writing

#: Of a list of explanations, by name as in `everything.STREAMED`.
IN_MEMORY: dict[str, Any] = {
    "edge_types": analysis.edge_types,
    "layers": lambda found: analysis.attribution_by_layer({"": found}).drop("method"),
    "levels": lambda found: analysis.attribution_levels({"": found}).drop("method"),
    "patterns": analysis.path_patterns,
    "inverses": analysis.inverses,
    "overlap": analysis.type_overlap,
}
GRAPHS = 700


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> store.Store:
    """Several shards, so that blocks run over their ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "ROWS_PER_SHARD", 3000)
        patch.setattr(bench, "AT_ONCE", 128)
        folder = tmp_path_factory.mktemp("store")
        rows = bench.write(folder, GRAPHS)
    opened = store.open(folder)
    assert len(opened.shards) == 3
    assert rows == sum(e.kept.numel() for e in opened) == pytest.approx(GRAPHS * 10 * 2, rel=0.05)
    return opened


@pytest.mark.parametrize("name", everything.STREAMED)
@pytest.mark.parametrize("edges", [40, 500, 1 << 16])
def test_tables_of_a_store_are_those_of_the_list(
    written: store.Store, name: str, edges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit: blocks end at the same graphs, wherever shards do."""
    monkeypatch.setattr(side_by_side, "EDGES_AT_ONCE", edges)
    table = everything.STREAMED[name][1](written)
    assert table.height > 0
    assert_frame_equal(table, IN_MEMORY[name](list(written)), check_exact=True)


def test_a_table_makes_no_explanation_and_holds_one_piece(
    written: store.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded by what is read at once: never more rows than a block and the graph that fills it."""
    monkeypatch.setattr(side_by_side, "EDGES_AT_ONCE", 500)
    monkeypatch.setattr(reading, "Explanation", None)
    read: list[int] = []
    real = reading.files.rows

    def counted(path: Path, start: int, stop: int, columns: list[str] | None = None) -> Any:
        read.extend([stop - start] * path.name.startswith("edges"))
        return real(path, start, stop, columns)

    monkeypatch.setattr(reading.files, "rows", counted)
    tables = [everything.STREAMED[name][1](written) for name in everything.STREAMED]
    assert len(tables) == 6
    assert max(read) <= 2 * (500 + bench.MOST_EDGES)
    # Once per table, but for edge types, which polars reads.
    assert sum(read) == 5 * sum(shard.rows for shard in written.shards)


def test_a_sample_is_even_seeded_and_in_order(written: store.Store) -> None:
    everyone = list(written)
    place = {tuple(e.scores.view(-1).tolist()): number for number, e in enumerate(everyone)}
    drawn = [place[tuple(e.scores.view(-1).tolist())] for e in written.sample(100, seed=1)]
    assert len(set(drawn)) == 100
    assert drawn == sorted(drawn)
    assert drawn == [place[tuple(e.scores.view(-1).tolist())] for e in written.sample(100, seed=1)]
    assert drawn != [place[tuple(e.scores.view(-1).tolist())] for e in written.sample(100, seed=2)]
    assert abs(sum(drawn) / 100 - GRAPHS / 2) < 4 * GRAPHS / 12**0.5 / 10  # four standard deviations of the mean
    assert [e.original.tolist() for e in written.sample(GRAPHS)] == [e.original.tolist() for e in everyone]
    assert list(written.sample(0)) == []


def test_a_note_says_how_many_were_drawn(written: store.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(everything, "SAMPLE", 200)
    name, _, frame, note = everything.mask_leakage_of(written).work_out()
    assert (name, note) == ("mask_leakage", "200 of 700 graphs, drawn with seed 0")
    assert frame["examples"].to_list() == [200] * 3


def test_measure_runs_every_table_at_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "cost", resident._run)  # not seven new processes, which take seconds to begin
    figures = bench.measure(300, progress=False)
    assert figures["graphs"] == [30, 300]
    assert [run["graphs"] for run in figures["write"]] == [30, 300]
    assert figures["tables"].keys() == {*everything.STREAMED, "mask_leakage"}
    assert all(run["seconds"] > 0 for runs in figures["tables"].values() for run in runs)
    header, table = bench.table(figures)
    assert [row[0] for row in table] == ["write", *figures["tables"]]
    assert {len(row) for row in table} == {len(header)}
    with pytest.raises(GraphMaskError, match="at least 100 explanations"):
        bench.measure(99)


def test_a_store_made_of_columns_is_a_store(tmp_path: Path) -> None:
    rows = bench.write_rows(tmp_path, 4_000)
    opened = store.open(tmp_path)
    assert opened.complete
    assert rows == sum(e.kept.numel() for e in opened) >= 4_000
    assert_frame_equal(analysis.edge_types(opened), analysis.edge_types(list(opened)), check_exact=True)
    assert bench.go_through(tmp_path) == rows


def test_figures_of_a_store_at_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "cost", resident._run)
    figures = bench.store_figures(5_000, 2_000)
    assert figures["rows"]["rows"] >= 5_000
    assert figures["rows"]["edge_types"]["peak_mb"] > 0
    assert bench.rows_of(figures["rows"])[1][1][0] == "edge_types"
    assert figures["load"]["graphs"] == 2_000
    assert len(figures["load"]["tenths"]) == 10
    header, table = load.rows(figures["load"])
    assert {len(row) for row in table} == {len(header)} == {12}
    for call in (lambda: bench.measure_rows(0), lambda: load.measure(10), lambda: kills.measure(0)):
        with pytest.raises(GraphMaskError, match="Expected at least"):
            call()


def hoard(megabytes: int) -> int:
    return len(bytearray(b"x" * 1_000_000) * megabytes)


def test_resident_memory_is_that_of_the_job_alone() -> None:
    ballast = hoard(200)
    seconds, extra, result, peak, cpu = resident.cost(hoard, 100)
    assert result == 100_000_000
    assert ballast == 200_000_000
    assert 95e6 < extra < 160e6
    assert peak > extra
    assert cpu > 0
    assert seconds > 0


def test_tables_need_no_types(tmp_path: Path) -> None:
    """A store whose graphs have none, analysed both ways."""
    opened = _untyped(tmp_path)
    assert opened.edges.select(pl.col("type").is_null().all()).collect().item()
    for name, (_, table) in everything.STREAMED.items():
        assert_frame_equal(table(opened), IN_MEMORY[name](list(opened)), check_exact=True)


def _untyped(folder: Path) -> store.Store:
    class Untyped(bench.Drawn):
        def _explain(self, batch: Any, repair: bool, where: str) -> Any:
            found = super()._explain(batch, repair, where)
            for explanation in found:
                explanation.edge_type = None
            return found

    return Untyped().explain_all(bench.Random(60, seed=3), out=folder, progress=False)
