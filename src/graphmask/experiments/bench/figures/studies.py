"""The tables of the two text studies, with the paper's figures beside ours; a page says once where ours are from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from graphmask.experiments.bench.markdown import table

Figures = dict[str, Any]

METHODS = {
    "graphmask, all of test": "GraphMask, all of test",
    "graphmask": "GraphMask",
    "unamortised": "non-amortised GraphMask",
    "gnn_explainer": "GNNExplainer",
    "integrated_gradients": "integrated gradients",
    "random": "random",
}
FRACTIONS = (0.25, 0.5, 0.75, 1.0)


def _share(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %"


def _over(runs: Sequence[Figures], key: str, style: Callable[[float], str], end: str = "") -> str:
    """Mean over fits, and the lowest to the highest."""
    values = [run[key] for run in runs]
    return f"{style(sum(values) / len(values))}{end} ({style(min(values))} to {style(max(values))})"


def _hundred(digits: int) -> Callable[[float], str]:
    return lambda value: f"{100 * value:.{digits}f}"


def _signed(value: float) -> str:
    return f"{value:+.2f}"


def _between(mean: float, low: float, high: float) -> str:
    return f"{mean:.1f}" if low == high else f"{mean:.1f} ({low:.1f} to {high:.1f})"


def _layers(rows: Sequence[Figures], key: str, digits: int = 1) -> list[str]:
    return [_share(row[key], digits) for row in rows]


# Question answering --------------------------------------------------------------------------------------------


def qa_rules(figures: Figures) -> str:
    rows = [[name, f"{accuracy:.1f}"] for name, accuracy in figures["rules"].items()]
    return table(["", "accuracy on test"], [*rows, ["**Entity-GCN**", f"**{figures['accuracy']:.1f}**"]])


def qa_summary(figures: Figures) -> str:
    fits = figures["tables"]["seeds"]
    by_layer = " / ".join(_share(share) for share in figures["retained_by_layer"])
    rows = [
        ["accuracy", f"{figures['accuracy']:.1f}", "59.0"],
        ["change of accuracy when masked, points", _over(fits, "accuracy_change", _signed), "-0.4"],
        ["messages retained", _over(fits, "retained", _hundred(1), " %"), "27 %"],
        ["of the kept, in layers 0 / 1 / 2 (seed 0)", by_layer, "51.6 / 28.8 / 19.6 %"],
        ["answers that change", _over(fits, "flips", _hundred(1), " %"), ""],
        ["explanations within tolerance", _over(fits, "faithful", _hundred(0), " %"), ""],
        ["Fleiss' kappa of five fits", f"{figures['kappa']:.2f}", "0.65"],
        ["Jaccard of two of them", f"{figures['jaccard']:.2f}", ""],
        ["tolerance", f"{figures['tolerance']:g}", "0.03"],
    ]
    return table(["", "here", "paper (WikiHop)"], rows)


#: Accuracy, by what is dropped and which share of it.
QA_EROSION = {
    ("superfluous", 0.0): "59.0",
    ("superfluous", 1.0): "58.6",
    ("retained", 0.25): "55.2",
    ("retained", 0.5): "52.8",
    ("retained", 0.75): "47.7",
    ("retained", 1.0): "45.2",
}


def _steps() -> list[tuple[str, str, float]]:
    """Name of the row, what is dropped, which share of it."""
    rest = [(f"{f:.0%}".replace("%", " %"), kind, f) for kind in ("superfluous", "retained") for f in FRACTIONS]
    return [("nothing", "superfluous", 0.0), *((f"{share} of the {kind}", kind, f) for share, kind, f in rest)]


def qa_erosion(figures: Figures) -> str:
    lines = {
        (row["dropped"], row["fraction"]): row for row in figures["tables"]["erosion"] if row["measure"] == "score"
    }
    rows = []
    for name, kind, fraction in _steps():
        row = lines[kind, fraction]
        rows.append([name, _between(row["mean"], row["low"], row["high"]), QA_EROSION.get((kind, fraction), "")])
    return table(["dropped", "accuracy", "paper"], rows)


def qa_types(figures: Figures) -> str:
    lines = figures["tables"]["types"]
    rows = []
    for kind in dict.fromkeys(row["type"] for row in lines):
        of_kind = [row for row in lines if row["type"] == kind]
        cells = [f"{_share(row['probability'], 0)} ({_share(row['share'], 0)})" for row in of_kind]
        rows.append([kind, *cells, _share(of_kind[0]["base_rate"], 0)])
    return table(["type", *(f"layer {n}" for n in range(len(rows[0]) - 2)), "share of all edges"], rows)


def qa_overlap(figures: Figures) -> str:
    rows = [
        [
            str(row["layer"]),
            f"{_share(row['overlap_any'])} of {row['kept']:,}",
            f"{_share(row['base_rate'])} of {row['edges']:,}",
        ]
        for row in figures["tables"]["overlap"]
    ]
    return table(["layer", "kept COREF edges beside a MATCH edge", "all COREF edges"], rows)


def qa_query(figures: Figures) -> str:
    tables = figures["tables"]
    rows = [
        [
            "questions with a kept edge between a mention of the subject and another node",
            *_layers(tables["connections"], "leaving"),
            "84.1 % at layer 0, 92.7 % at any",
        ],
        [
            "kept edges on kept paths from a mention of the subject",
            *_layers(tables["on_paths"], "share"),
            "11.8 / 42.7 / 73.8 %",
        ],
        ["kept edges whose inverse is kept too", *_layers(tables["inverses"], "share"), "49 / 98 / 79 %"],
    ]
    return table(["", "layer 0", "layer 1", "layer 2", "any layer", "paper"], rows)


def qa_paths(figures: Figures) -> str:
    rows = [[row["path"], _share(row["share"])] for row in figures["tables"]["shapes"][:8]]
    return table(["kept path from the subject", "share"], rows)


def _without(lines: Sequence[Figures]) -> tuple[float, list[str]]:
    """The score with all layers, and without the messages of each."""
    whole, *each = [row for row in lines if row["measure"] == "score"]
    return whole["value"], [f"{row['value']:.1f} ({row['change']:+.1f})" for row in each]


def qa_layers(figures: Figures) -> str:
    whole, without = _without(figures["tables"]["dropped"])
    rows = [
        [f"accuracy without the layer's messages ({whole:.1f} with all)", *without],
        ["the paper's (59.0 with all)", "33.1 (-25.9)", "41.6 (-17.4)", "52.0 (-7.0)"],
        ["answers that change without them", *(_share(1 - same) for same in figures["knockout_agreement"])],
    ]
    return table(["", "layer 0", "layer 1", "layer 2"], rows)


QA_ATTRIBUTION = {
    "graphmask": "51.6 / 28.8 / 19.6",
    "unamortised": "0.4 / 8.6 / 91.0",
    "gnn_explainer": "4.3 / 11.9 / 83.8",
    "integrated_gradients": "11.3 / 33.0 / 55.7",
}
#: Of methods with hard gates the attribution is what they keep, of the others the sum of their scores.
HARD = ("graphmask", "unamortised")


def qa_attribution(figures: Figures) -> str:
    rows = []
    for method, paper in QA_ATTRIBUTION.items():
        lines = [row for row in figures["tables"]["attribution"] if row["method"] == method]
        shares = _layers(lines, "kept_share" if method in HARD else "score_share")
        rows.append([METHODS[method], *shares, paper, "yes" if figures["ranks_agree"][method] else "no"])
    header = ["share of the attribution", "layer 0", "layer 1", "layer 2", "paper, per cent"]
    return table([*header, "order as in the knock-out"], rows)


def qa_evidence(figures: Figures) -> str:
    rows = [
        [
            METHODS[row["method"]],
            str(row["graphs"]),
            f"{100 * row['auc']:.1f} ± {100 * row['margin']:.1f}",
            *(_share(row[key], 0) for key in ("precision", "recall", "path_precision")),
        ]
        for row in figures["tables"]["evidence"]
    ]
    header = ["", "questions", "AUC", "precision of the kept", "recall", "precision on paths to the answer"]
    return table(header, rows)


def qa_forms(figures: Figures) -> str:
    rows = [
        [row["form"], _share(row["retained"]), _signed(row["accuracy_change"]), f"{row['divergence']:.3f}"]
        for row in figures["tables"]["forms"]
    ]
    return table(["form", "retained", "change of accuracy", "divergence"], rows)


# Role labelling ------------------------------------------------------------------------------------------------

LABELLERS = {"lstm": "LSTM+GNN", "gnn": "GNN-only"}


def _both(figures: Figures, paper: tuple[str, str], cell: Callable[[Figures], str]) -> list[str]:
    return [part for name, told in zip(LABELLERS, paper, strict=True) for part in (cell(figures[name]), told)]


def srl_summary(figures: Figures) -> str:
    def kinds(f: Figures) -> str:
        return " / ".join(f"{f['by_kind'][kind]['f1']:.1f}" for kind in ("V", "N"))

    none = ("", "")
    lines: list[tuple[str, tuple[str, str], Callable[[Figures], str]]] = [
        ("labelled F1 of arguments", ("87.1", "83.8"), lambda f: f"{f['f1']:.1f}"),
        ("the same, verbal / nominal", none, kinds),
        (
            "change of F1 when masked, points",
            ("-0.62", "-0.79"),
            lambda f: _over(f["seeds"], "f1_change", _signed),
        ),
        ("messages retained", ("4 %", "16 %"), lambda f: _over(f["seeds"], "retained", _hundred(1), " %")),
        ("of them per layer, seed 0", none, lambda f: ", ".join(map(_share, f["retained_per_site"]))),
        ("tokens whose role changes", none, lambda f: _over(f["seeds"], "flips", _hundred(2), " %")),
        ("explanations within tolerance", none, lambda f: _over(f["seeds"], "faithful", _hundred(0), " %")),
        ("Fleiss' kappa of the five", ("0.79", "0.74"), lambda f: f"{f['kappa']:.2f}"),
        ("Jaccard of two of them", none, lambda f: f"{f['jaccard']:.2f}"),
        ("tolerance", ("0.03", "0.03"), lambda f: f"{f['tolerance']:g}"),
    ]
    rows = [[name, *_both(figures, paper, cell)] for name, paper, cell in lines]
    return table(["", "LSTM+GNN", "paper", "GNN-only", "paper"], rows)


SRL_EROSION = {
    ("superfluous", 0.0): ("87.1", "83.8"),
    ("superfluous", 1.0): ("86.6", "83.1"),
    ("retained", 0.25): ("83.1", "74.4"),
    ("retained", 0.5): ("74.3", "66.1"),
    ("retained", 0.75): ("68.9", "58.9"),
    ("retained", 1.0): ("63.8", "56.5"),
}


def srl_erosion(figures: Figures) -> str:
    rows = []
    for name, kind, fraction in _steps():
        paper = SRL_EROSION.get((kind, fraction), ("", ""))
        cells = {model: _between(*figures[model]["erosion"][kind][f"{fraction:g}"]) for model in LABELLERS}
        rows.append([name, cells["lstm"], paper[0], cells["gnn"], paper[1]])
    return table(["dropped", "LSTM+GNN", "paper", "GNN-only", "paper"], rows)


def srl_labels(figures: Figures) -> str:
    """The ten with the largest share of the kept."""

    def told(model: str, group: str) -> str:
        lines = [row for row in figures[model]["labels"] if row["group"] == group][:10]
        return ", ".join(f"{row['label']} {_share(row['probability'], 0)}" for row in lines)

    rows = [[name, *(told(model, group) for model in LABELLERS)] for group, name in GROUPS.items()]
    return table(["", *LABELLERS.values()], [[f"{name} predicates", *cells] for name, *cells in rows])


GROUPS = {"V": "verbal", "N": "nominal"}
#: The paper's table 3: by kind of predicate and length of the path, shares with 0, 1 (and 2) edges retained.
SRL_PATHS = {
    ("V", 1): ((".01", ".99"), (".01", ".99")),
    ("V", 2): ((".10", ".90"), (".07", ".74", ".19")),
    ("V", 3): ((".79", ".21"), (".74", ".22", ".04")),
    ("N", 1): ((".01", ".99"), (".02", ".98")),
    ("N", 2): ((".89", ".11"), (".30", ".25", ".45")),
    ("N", 3): ((".73", ".27"), (".56", ".32", ".12")),
}


def srl_paths(figures: Figures) -> str:
    rows = []
    for (group, length), papers in SRL_PATHS.items():
        cells, counts = [], []
        for model, paper in zip(LABELLERS, papers, strict=True):
            lines = [row for row in figures[model]["paths"] if (row["group"], row["length"]) == (group, length)]
            shares = {row["retained"]: row["share"] for row in lines}
            counts.append(f"{sum(row['paths'] for row in lines):,}")
            told = [f"{shares.get(retained, 0.0):.2f}".removeprefix("0") for retained in range(len(paper))]
            cells += [f"{ours} ({theirs})" for ours, theirs in zip(told, paper, strict=True)]
        name = f"{GROUPS[group]}, {length}{' and more' if length == 3 else ''} ({' / '.join(counts)} paths)"
        rows.append([name, *cells, *[""] * (5 - len(cells))])
    return table(["predicate, path length", "LSTM+GNN: 0", "1", "GNN-only: 0", "1", "2"], rows)


def srl_layers(figures: Figures) -> str:
    lines = figures["gnn"]["attribution"]
    rows = [
        [METHODS[method], *_layers([row for row in lines if row["method"] == method], "mean_score_share", 0)]
        for method in ("graphmask", "integrated_gradients", "gnn_explainer", "unamortised")
    ]
    _, without = _without(figures["gnn"]["dropped"])
    return table(["", "layer 1", "layer 2"], [*rows, ["F1 without the layer's messages", *without]])


#: Name in the markers: the study, and the table.
TABLES: dict[str, tuple[str, Callable[[Figures], str]]] = {
    "qa.rules": ("qa", qa_rules),
    "qa.summary": ("qa", qa_summary),
    "qa.erosion": ("qa", qa_erosion),
    "qa.types": ("qa", qa_types),
    "qa.overlap": ("qa", qa_overlap),
    "qa.query": ("qa", qa_query),
    "qa.paths": ("qa", qa_paths),
    "qa.layers": ("qa", qa_layers),
    "qa.attribution": ("qa", qa_attribution),
    "qa.evidence": ("qa", qa_evidence),
    "qa.forms": ("qa", qa_forms),
    "srl.summary": ("srl", srl_summary),
    "srl.erosion": ("srl", srl_erosion),
    "srl.labels": ("srl", srl_labels),
    "srl.paths": ("srl", srl_paths),
    "srl.layers": ("srl", srl_layers),
}
