"""The page of results: claims, the figures they rest on, the commands that gave them, when, and what speaks against.

Figures are worked out from the sections. A claim whose section is missing is an error, not an empty cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from graphmask.errors import GraphMaskError
from graphmask.experiments.bench.battery.summary import HALVES, verdicts
from graphmask.experiments.bench.figures.record import Section
from graphmask.experiments.bench.leaderboard import pages as leaderboard_pages
from graphmask.experiments.bench.markdown import table

Figures = dict[str, Any]


class Claim(NamedTuple):
    """One row."""

    says: str
    section: str
    figure: Callable[[Figures], str]
    caveat: str
    page: str  #: of the documentation, with the whole table


def _gold(task: str) -> Callable[[Figures], str]:
    def told(figures: Figures) -> str:
        summary = figures["summary"][task]
        lowest = " / ".join(f"{site['f1_lowest']:.1f}" for site in summary["per_site"])
        counts = " / ".join(str(site["good"]) for site in summary["per_site"])
        return f"F1 >= 99.0 on {counts} of {summary['seeds']} seeds; lowest F1 {lowest}"

    return told


def _battery(what: str) -> Callable[[Figures], str]:
    def told(figures: Figures) -> str:
        answers = dict(verdicts(figures)).get(what, {})
        return ", ".join(f"{half} {answers[half]}" for half in HALVES if answers.get(half))

    return told


def _first(figures: Figures) -> str:
    sets = leaderboard_pages.of_file(figures)
    return f"{sum(map(leaderboard_pages.first, sets.values()))} of {len(sets)} sets"


def _best_other(figures: Figures) -> str:
    methods = figures["methods"]
    ours = methods["graphmask"]["f1"]
    others = {name: line["f1"] for name, line in methods.items() if name != "graphmask" and line.get("f1") is not None}
    best = max(others, key=lambda name: others[name])
    return f"F1 {ours:.1f}; next `{best}` {others[best]:.1f}"


def _core(figures: Figures) -> str:
    explain = " / ".join(f"{value:.1f}" for value in figures["explain_ratio"].values())
    step = " / ".join(f"{value:.2f}" for value in figures["fit_step_ratio"].values())
    sizes = " / ".join(size.replace("1e", "10^") for size in figures["explain_ratio"])
    return f"explaining {explain} forwards, a fit step {step} training steps at {sizes} edges (GCN)"


def _small(figures: Figures) -> str:
    return "; ".join(
        f"{name}: {ratios['explain_ratio']:.1f} forwards, a fit step {ratios['fit_step_ratio']:.1f} training steps"
        for name, ratios in figures["models"].items()
    )


def _largest(figures: Figures) -> str:
    size, cost = list(figures["models"]["GCN"].items())[-1]
    ratio, memory = cost["explain_ratio"], cost["explain_memory_ratio"]
    return f"{ratio:.1f} forwards and {memory:.2f} times their memory at {size.replace('1e', '10^')} edges (GCN)"


def _store(figures: Figures) -> str:
    small, large = (f"{graphs:,}" for graphs in figures["graphs"])
    most = max(figures["memory_ratio"].values())
    return f"at most {most:.2f} times the memory for {large} explanations that {small} take"


def _kills(figures: Figures) -> str:
    return f"{figures['kills']} kills, {figures['graphs']:,} graphs, each there once"


def _transformer(figures: Figures) -> str:
    return f"{figures['explain_ratio']:.1f} forwards, {figures['memory_with_parameters']:.1f} times the memory"


def _matrix(figures: Figures) -> str:
    return f"{max(row['over_naive'] for row in figures['rows']):.2f} of a message per entry, at most"


def _srl(figures: Figures) -> str:
    return "; ".join(
        f"{name}: {of_model['f1_change']:+.2f} points of F1 with {of_model['retained']:.1%} kept"
        for name, of_model in figures.items()
    )


def _qa(figures: Figures) -> str:
    return (
        f"{figures['accuracy_change']:+.2f} points of accuracy with {figures['retained']:.1%} kept, "
        f"kappa {figures['kappa']:.2f}"
    )


#: In the order of the page.
CLAIMS = (
    Claim(
        "Where one layer's truth is known, it is found (star)",
        "gold",
        _gold("star"),
        "graphs and model are this library's own",
        "recipe.md",
    ),
    Claim(
        "The same over two layers (relay), layer by layer",
        "gold",
        _gold("relay"),
        "where it falls short, more is kept than needed",
        "recipe.md",
    ),
    Claim(
        "On star no other method finds as much of it",
        "compare_star",
        _best_other,
        "soft methods are given the best threshold on validation graphs",
        "methods.md",
    ),
    Claim(
        "The same on relay",
        "compare_relay",
        _best_other,
        "soft methods are given the best threshold on validation graphs",
        "methods.md",
    ),
    Claim(
        "Models that nobody tuned for: share of the messages kept",
        "battery",
        _battery("mean share of messages kept"),
        "a mean over models of very different kinds",
        "battery.md",
    ),
    Claim(
        "Fits with other seeds keep the same: models with kappa of at least .75",
        "battery",
        _battery("models with kappa in total >= .75"),
        "gate networks start alike for every seed, so kappa does not say that no other explanation would do",
        "battery.md",
    ),
    Claim(
        "Bare gates are within tolerance on test data on average: fits",
        "battery",
        _battery("fits with a mean divergence on test within tolerance"),
        "relational models with few graphs are not",
        "battery.md",
    ),
    Claim(
        "With repair, each explanation is within tolerance",
        "battery",
        _battery("explanations within tolerance, with repair"),
        "repair makes it so for any method; what it costs is the next row",
        "battery.md",
    ),
    Claim(
        "Share kept after repair",
        "battery",
        _battery("share kept after repair"),
        "on at most about 100 graphs per model",
        "battery.md",
    ),
    Claim(
        "Edge AUC is the highest, or within half a point of it, beside PyTorch Geometric's explainers",
        "leaderboard",
        _first,
        "the models were not chosen blindly, and only ours was looked at for it",
        "leaderboard.md",
    ),
    Claim("Explaining costs a few forwards", "core", _core, "random models; nothing needs repair", "scale.md"),
    Claim("One small graph", "small", _small, "20 nodes, 60 edges, three layers; nothing needs repair", "scale.md"),
    Claim(
        "Memory grows as the model's own does",
        "scale",
        _largest,
        "one random graph per size",
        "scale.md",
    ),
    Claim("Tables of a store take bounded memory", "store", _store, "explanations are random", "store.md"),
    Claim("A store survives its writer", "store_kills", _kills, "kill -9, not a power cut", "store.md"),
    Claim(
        "Attention of a transformer of MiniLM's size",
        "transformer",
        _transformer,
        "random weights, eager attention; memory with the model's weights on both sides",
        "transformers.md",
    ),
    Claim(
        "Gates of adjacency matrices need no message per entry",
        "matrix",
        _matrix,
        "peak memory of the gates alone",
        "scale.md",
    ),
    Claim(
        "Role labelling: most messages are superfluous",
        "srl",
        _srl,
        "another corpus than the paper's",
        "studies/srl.md",
    ),
    Claim(
        "Question answering: the same",
        "qa",
        _qa,
        "another corpus than the paper's",
        "studies/qa.md",
    ),
)


def _weaker(section: Section) -> Iterator[str]:
    """What speaks against these very figures, and would not against new ones."""
    if "caveat" in section:
        yield section["caveat"]
    if "recipe" in section:
        yield "former default recipe"
    if "by_hand" in section:
        yield "written down by hand"


def markdown(sections: Mapping[str, Section]) -> str:
    rows = []
    for claim in CLAIMS:
        if claim.section not in sections:
            raise GraphMaskError(f"Expected a section {claim.section!r} among the figures, found none.")
        section = sections[claim.section]
        rows.append(
            [
                f"[{claim.says}]({claim.page})",
                claim.figure(section["figures"]),
                f"`{section['command']}`",
                f"{section['date']} (`{section['commit'][:7]}`)",
                "; ".join([claim.caveat, *_weaker(section)]),
            ]
        )
    return table(["claim", "figure", "command", "date", "caveat"], rows)
