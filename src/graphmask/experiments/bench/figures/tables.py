"""Every table of measured figures in the documentation, as a function of the sections that it is made from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphmask.errors import GraphMaskError
from graphmask.experiments.bench import core, first
from graphmask.experiments.bench import pages as large_pages
from graphmask.experiments.bench.battery import pages as battery_pages
from graphmask.experiments.bench.figures import studies
from graphmask.experiments.bench.figures.record import Section
from graphmask.experiments.bench.leaderboard import pages as leaderboard_pages
from graphmask.experiments.bench.markdown import table

Figures = dict[str, Any]


#: A section may say that its origin is less than a measurement's: that a person copied figures from a page, or that
#: date and commit are those under which the file came into the repository.
WEAKER = {"by_hand": "written down by hand on ", "filed": "put here on "}


def origin_line(section: Section) -> str:
    """How, when and from which state of the code."""
    how = next((words for key, words in WEAKER.items() if key in section), "")
    said = f"By `{section['command']}`, {how}{section['date']} (`{section['commit'][:7]}`)."
    if "recipe" in section:
        said += f" This was measured with the former default recipe, `{section['recipe']}`."
    return said


def size(text: str) -> str:
    """`1e5` as people write it."""
    return text.replace("1e", "10^")


def gold(figures: Figures) -> str:
    """Precision and recall are means over seeds, F1 is the lowest."""
    rows = []
    for task, summary in figures["summary"].items():
        several = len(summary["per_site"]) > 1
        for number, site in enumerate(summary["per_site"], 1):
            name = f"{task}, layer {number}" if several else task
            shares = [f"{site[key]:.1f}" for key in ("precision", "recall", "f1_lowest")]
            rows.append([name, *shares, f"{site['good']} of {summary['seeds']}"])
    return table(["", "precision", "recall", "F1, lowest seed", "seeds with F1 >= 99.0"], rows)


def costs(figures: Figures) -> str:
    """By size and model; and, where it was measured, how time per edge grows with size."""
    rows: dict[str, list[str]] = {}
    for name, explain, step, memory in core.rows(figures):
        # GCN at 10^5 edges is in both parts: the first counts.
        rows.setdefault(name, [size(name), f"{explain:.1f}", f"{step:.2f}", f"{memory:.1f}"])
    header = ["model, edges", "explain / forward", "fit step / training step", "explain, peak memory"]
    text = table(header, list(rows.values()))
    if "explain_growth" not in figures:
        return text
    grown = [
        [size(name), f"{explain:.2f}", f"{forward:.2f}", _optional(over)]
        for name, explain, forward, _, _, _, over in core.growth_rows(figures)
    ]
    header = ["model, edges", "explain, µs per edge", "forward, µs per edge", "explain grows / forward grows"]
    return f"{text}\nTime per edge, and what it grows by from the size before:\n\n{table(header, grown)}"


def _optional(value: float | str) -> str:
    return f"{value:.2f}" if isinstance(value, float) else value


def small(figures: Figures) -> str:
    keys = ("explain_ratio", "fit_step_ratio", "explain_ms", "forward_ms")
    rows = [[model, *(f"{of_model[key]:.2f}" for key in keys)] for model, of_model in figures["models"].items()]
    text = table(["model", "explain / forward", "fit step / training step", "explain, ms", "forward, ms"], rows)
    waiting = figures.get("first")
    if waiting is None:
        return text
    about = (
        f"Until the first explanation, fit included, and each one after (CPU time; {waiting['model']} and a mean over "
        f"nodes, GraphMask fitted to {waiting['graphs']} such graphs, its explanations verified and repaired):"
    )
    times = [[name, f"{start:.2f}", f"{each:.1f}"] for name, start, each in first.rows(waiting)]
    return f"{text}\n{about}\n\n{table(['method', 'first explanation, s', 'each one after, ms'], times)}"


def scale_costs(figures: Figures) -> str:
    keys = {"explain_ratio": ".1f", "explain_memory_ratio": ".2f", "fit_step_ratio": ".1f", "fit_memory_ratio": ".2f"}
    rows = [
        [f"{model}, {size(power)}", *(format(cost[key], style) for key, style in keys.items())]
        for model, sizes in figures["models"].items()
        for power, cost in sizes.items()
    ]
    return table(["model, edges", "explain / forward", "memory", "fit step / training step", "memory"], rows)


#: What an explanation of each is, beside its cost.
PEERS = {
    "GraphMask": "hard masks per layer, verified by a masked run",
    "PGExplainer": "one soft mask for all layers, not verified",
    "GNNExplainer": "one soft mask, not verified; its default 100 epochs, timed over 3",
}


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def scale_peers(figures: Figures) -> str:
    sizes = list(next(iter(figures["peers"].values())))
    by_method = {"GraphMask": figures["models"]["GCN"], **figures["peers"]}
    rows = [
        [
            name,
            *(_short(by_method[name][power]["explain_ratio"]) for power in sizes),
            f"{by_method[name][sizes[-1]]['explain_memory_ratio']:.1f}",
            about,
        ]
        for name, about in PEERS.items()
    ]
    return table(["", *(f"{size(power)} edges" for power in sizes), "memory", ""], rows)


def scale_processes(figures: Figures) -> str:
    rows = [
        [str(run["processes"]), f"{run['fit_speedup']:.1f}", f"{run['explain_speedup']:.1f}"]
        for run in figures["processes"]["runs"]
        if run["processes"] > 1
    ]
    return table(["processes", "fit step, times as fast as one", "explaining, times as fast as one"], rows)


def store(figures: Figures) -> str:
    from graphmask.experiments.bench.store import table as store_table

    return table(*store_table(figures))


STORE_JOBS = {
    "write": "write",
    "edge_types": "`analysis.edge_types(store)`: kept edges by layer and type",
    "blocks": "all blocks, as the other tables read them",
}


def store_rows(figures: Figures) -> str:
    keys = ("peak_mb", "extra_mb", "seconds")
    rows = [[about, *(f"{figures[job][key]:.0f}" for key in keys)] for job, about in STORE_JOBS.items()]
    return table(["", "peak MB", "beyond imports, MB", "s"], rows)


def store_load(figures: Figures) -> str:
    about = {
        "graphs_per_cpu_second": ("graphs per CPU second", ".0f"),
        "explain_over_forward": ("explaining / the model by itself", ".1f"),
        "resident_mb": ("resident MB, at most", ".0f"),
    }
    tenths = figures["tenths"]
    rows = [
        [name, *(format(tenth[key], style) for tenth in tenths), f"{figures['last_over_first'][key]:.2f}"]
        for key, (name, style) in about.items()
    ]
    return table(["tenth of the run", *(str(number + 1) for number in range(len(tenths))), "last / first"], rows)


def store_kills(*both: Figures) -> str:
    keys = ("writers", "kills", "unfinished", "stores", "graphs", "shards")
    header = [
        "writers at once",
        "kills",
        "left a shard unfinished",
        "stores",
        "graphs, each there once",
        "shards, whole",
    ]
    return table(header, [[f"{figures[key]:,}" for key in keys] for figures in both])


def matrix(figures: Figures) -> str:
    rows = [
        [
            str(row["nodes"]),
            f"{row['call'] / 1e6:.1f}",
            f"{row['step'] / 1e6:.1f}",
            *(f"{row[key]:.2f}" for key in ("over_bound", "step_over_bound", "over_naive")),
        ]
        for row in figures["rows"]
    ]
    header = ["nodes", "MB", "with gradients, MB", "over 4 B (R N² + R N D)", "with gradients"]
    return table([*header, "over a message per entry"], rows)


def _known(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def transformer(*kinds: Figures) -> str:
    rows = [
        [
            f'`heads="{kind["heads"]}"`',
            *(_known(kind.get(key)) for key in ("explain_ratio", "step_ratio", "memory", "memory_with_parameters")),
        ]
        for kind in kinds
    ]
    header = ["gates", "explain / forward", "fit step / forward", "explain, new tensors / forward"]
    return table([*header, "with the model's weights"], rows)


def _spread(line: Figures, key: str) -> str:
    return f"{line[key]:.1f} ± {line[f'{key}_std']:.1f}"


def _tenths(value: float) -> str:
    return f"{value:.1f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _times(line: Figures, key: str) -> str:
    value = line.get(key)
    return "" if value is None else f"{value:.1f}" if value < 10 and value != round(value) else f"{value:.0f}"


def _applying(figures: Figures) -> dict[str, Figures]:
    return {name: line for name, line in figures["methods"].items() if "not_applicable" not in line}


def star_methods(figures: Figures) -> str:
    rows = [
        [
            f"`{name}`",
            *(_spread(line, key) for key in ("precision", "recall", "f1")),
            f"{line['paper']['f1']:.1f}" if "paper" in line else "",
            _percent(line["flips"]),
            *(_times(line, key) for key in ("times_in_batches", "times_alone")),
        ]
        for name, line in _applying(figures).items()
    ]
    header = ["method", "precision", "recall", "F1", "F1 in the paper", "answers changed", "time in batches"]
    return table([*header, "time alone"], rows)


#: Of the README: the paper's methods, a simple one, and chance.
FEW = (
    "graphmask",
    "integrated_gradients",
    "information_bottleneck",
    "occlusion",
    "gnn_explainer",
    "erasure_search",
    "random",
)


def star_few(figures: Figures) -> str:
    methods = figures["methods"]
    rows = [
        [
            f"`{name}`",
            *(_tenths(methods[name][key]) for key in ("precision", "recall", "f1")),
            _percent(methods[name]["flips"]),
        ]
        for name in FEW
    ]
    return table(["method", "precision", "recall", "F1", "answers changed"], rows)


def relay_methods(figures: Figures) -> str:
    rows = [
        [
            f"`{name}`",
            *(_spread(line, key) for key in ("precision", "recall", "f1")),
            " / ".join(f"{value:.1f}" for value in line["f1_per_site"]),
            f"{line['divergence']:.3f}",
            _percent(line["flips"]),
            _times(line, "times_in_batches"),
        ]
        for name, line in _applying(figures).items()
    ]
    header = ["method", "precision", "recall", "F1", "F1 layer 1 / 2", "divergence", "answers changed"]
    return table([*header, "time in batches"], rows)


def leaderboard_tables(figures: Figures) -> str:
    return leaderboard_pages.markdown(leaderboard_pages.of_file(figures))


#: Name in the markers: the sections a table is made from, and how.
TABLES: dict[str, tuple[Sequence[str], Callable[..., str]]] = {
    "gold": (["gold"], gold),
    "core": (["core"], costs),
    "small": (["small"], small),
    "scale": (["scale"], scale_costs),
    "scale.peers": (["scale"], scale_peers),
    "scale.processes": (["scale"], scale_processes),
    "store": (["store"], store),
    "store_rows": (["store_rows"], store_rows),
    "store_load": (["store_load"], store_load),
    "store_kills": (["store_kills", "store_kills_two"], store_kills),
    "matrix": (["matrix"], matrix),
    "pages": (["pages"], lambda figures: table(*large_pages.rows(figures))),
    "transformer": (["transformer", "transformer_together"], transformer),
    "compare_star": (["compare_star"], star_methods),
    "compare_star.few": (["compare_star"], star_few),
    "compare_relay": (["compare_relay"], relay_methods),
    "battery": (["battery"], battery_pages.markdown),
    "leaderboard": (["leaderboard"], leaderboard_tables),
    # A study has many tables on one page: where they are from is said once, at its top.
    "qa": (["qa"], lambda _: ""),
    "srl": (["srl"], lambda _: ""),
}


def makers(sections: Mapping[str, Section]) -> dict[str, Callable[[], str]]:
    """A function for every table, which is called only where a page has its marker."""

    def make(names: Sequence[str], render: Callable[..., str]) -> str:
        for name in names:
            if name not in sections:
                raise GraphMaskError(
                    f"Expected a section {name!r} among the figures, found none. Try: bench all --only"
                )
        named = [sections[name] for name in names]
        body = render(*(section["figures"] for section in named))
        return f"{' '.join(map(origin_line, named))}\n\n{body.rstrip()}\n"

    def of_study(section: str, render: Callable[[Figures], str]) -> str:
        return render(sections[section]["figures"])

    return {
        **{name: functools.partial(make, *about) for name, about in TABLES.items()},
        **{name: functools.partial(of_study, *about) for name, about in studies.TABLES.items()},
    }
