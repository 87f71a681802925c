"""The leaderboard as Markdown and as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graphmask.experiments.bench.markdown import table

#: Where a tie ends, in points of AUC.
TIE = 0.5
NAMES = {
    "graphmask": "GraphMask (ours)",
    "pyg_gnn_explainer": "GNNExplainer",
    "pyg_pg_explainer": "PGExplainer",
    "pyg_graphmask_explainer": "GraphMaskExplainer",
    "pyg_captum_explainer": "CaptumExplainer",
    "random": "random",
}


def collapsed(line: dict[str, Any]) -> int:
    """Fits none of whose layers chooses: each keeps everything, or nothing."""
    return sum(all(share in (0.0, 1.0) for share in fit) for fit in line["retained"])


def first(about: dict[str, Any]) -> bool:
    """Is ours the highest AUC of a set, or within a tie of it?"""
    scores = {name: line["auc"] for name, line in about["methods"].items() if line["auc"] is not None}
    return "graphmask" in scores and scores["graphmask"] >= max(scores.values()) - TIE


def _table(header: list[str], rows: list[list[str]]) -> str:
    return table(header, rows) + "\n"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def markdown(figures: dict[str, Any]) -> str:
    """Edge AUC of all; every figure per set; what the fits kept; what went wrong elsewhere."""
    methods = [name for name in NAMES if any(name in about["methods"] for about in figures.values())]
    names = [NAMES[name] for name in methods]

    def cell(about: dict[str, Any], method: str, key: str, digits: int) -> str:
        return _number(about["methods"].get(method, {}).get(key), digits)

    parts = ["Edge AUC, per cent (pooled over all edges asked about; mean over seeds)\n\n"]
    parts.append(
        _table(
            ["set", "model's accuracy", *names, "ours first or tied"],
            [
                [
                    name,
                    f"{about['accuracy']:.1f}",
                    *(cell(about, m, "auc", 1) for m in methods),
                    "yes" if first(about) else "no",
                ]
                for name, about in figures.items()
            ],
        )
    )
    for key, title, digits in (
        ("f1", "F1, per cent", 1),
        (
            "sufficiency",
            "Sufficiency: probability of the predicted class lost when only the kept edges remain (0 is best)",
            3,
        ),
        ("flips", "Flip rate: share of predictions changed when only the kept edges remain", 3),
        ("kappa", "Fleiss' kappa over seeds", 2),
        ("ms", "Milliseconds per explanation, in batches where the method can", 2),
        ("ms_alone", "Milliseconds per explanation, one at a time", 1),
    ):
        rows = [[name, *(cell(about, method, key, digits) for method in methods)] for name, about in figures.items()]
        parts.append(f"{title}\n\n" + _table(["set", *names], rows))
    fits = {name: about["methods"]["graphmask"] for name, about in figures.items() if "graphmask" in about["methods"]}
    if fits:
        rows = [
            [
                name,
                "; ".join(" / ".join(f"{share:.0%}" for share in fit) for fit in line["retained"]),
                f"{sum(line['feasible'])} of {len(line['feasible'])}",
                str(collapsed(line)),
                f"{sum(line['fit_seconds']) / len(line['fit_seconds']):.0f}",
            ]
            for name, line in fits.items()
        ]
        header = ["set", "edges kept per layer, fit by fit", "within tolerance", "collapsed", "seconds per fit"]
        parts.append("Our fits\n\n" + _table(header, rows))
    trouble = [
        [name, NAMES[method], line.get("error") or "; ".join(line["notes"])]
        for name, about in figures.items()
        for method, line in about["methods"].items()
        if "error" in line or "notes" in line
    ]
    if trouble:
        parts.append("What happened to the others\n\n" + _table(["set", "method", "what happened"], trouble))
    return "".join(parts)


def of_file(figures: dict[str, Any]) -> dict[str, Any]:
    """What `markdown` takes, from the JSON of the leaderboard."""
    return {
        name: {"accuracy": figures["accuracy"][name], "methods": methods} for name, methods in figures["sets"].items()
    }


def draw(figures: dict[str, Any], path: Path) -> Path:
    """Edge AUC by set, a dot per method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    for number, (method, name) in enumerate(NAMES.items()):
        spots = [
            (column, about["methods"][method]["auc"])
            for column, about in enumerate(figures.values())
            if about["methods"].get(method, {}).get("auc") is not None
        ]
        if spots:
            ours = method == "graphmask"
            across, up = zip(*spots, strict=True)
            axes.scatter(across, up, label=name, s=70 if ours else 28, marker="oDs^vx"[number], zorder=3 if ours else 2)
    axes.set_xticks(range(len(figures)), list(figures), rotation=35, ha="right")
    axes.axhline(50, linewidth=0.8, color="grey", zorder=1)
    axes.set_ylabel("edge AUC, per cent")
    axes.set_ylim(0, 103)
    axes.legend(ncols=3, fontsize=8, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
    return path
