"""`graphmask bench ...`: figures that the documentation quotes, each by one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphmask.cli import bench_attention
from graphmask.cli.common import Json, Seed, console, say, show, write_json
from graphmask.errors import GraphMaskError
from graphmask.experiments.settings import KNOWN

app = typer.Typer(
    help="Measure: cost (core, small, scale, transformer), gold over seeds (gold, sequences), attention beside "
    "chemists (reactions) and marked evidence (minilm), parts of the recipe (ablation), memory (store, matrix), other "
    "explainers (leaderboard, peers), models that nobody tuned for (battery), pages of large graphs (pages); or all of "
    "it for the documentation (all, record), whose tables are then written (tables).",
    no_args_is_help=True,
)


@app.command("core")
def core(
    json: Json = None,
    seed: Seed = 0,
    largest: Annotated[float, typer.Option(help="Largest number of edges.")] = 1e6,
) -> None:
    """Cost as ratios in one process on one thread: explain / forward, fit step / training step, peak memory."""
    from graphmask.experiments.bench.core import growth_rows, measure, rows

    figures = measure(seed=seed, largest=int(largest))
    show(
        "cost as ratios, one thread",
        ["edges", "explain / forward", "fit step / training step", "explain memory"],
        rows(figures),
    )
    show(
        "microseconds per edge, and their growth from the size before; linear is 1",
        ["edges", "explain", "forward", "explain / forward", "explain grows", "forward grows", "quotient"],
        growth_rows(figures),
    )
    say(f"star fit: {figures['star_fit_cpu_seconds']:.1f} CPU seconds")
    write_json(json, figures)


@app.command("small")
def small(
    json: Json = None,
    seed: Seed = 0,
    repeats: Annotated[int, typer.Option(help="Runs of either kind, in turns.")] = 100,
) -> None:
    """One graph of 20 nodes and 60 edges, three layers: explain / forward, fit step / training step, on one thread.

    And the time to the first explanation, fit included, and of each one after, beside PyG's explainers and Captum's.
    """
    from graphmask.experiments.bench import first
    from graphmask.experiments.bench.small import measure

    figures = measure(seed, repeats)
    show(
        f"{figures['nodes']} nodes, {figures['edges']} edges, {figures['layers']} layers, one thread",
        ["model", "explain / forward", "fit step / training step", "explain, ms", "forward, ms"],
        [[name, *costs.values()] for name, costs in figures["models"].items()],
    )
    header = ["method", "first explanation, s", "each one after, ms"]
    show(f"{figures['first']['model']}, one answer per graph, CPU time", header, first.rows(figures["first"]))
    write_json(json, figures)


@app.command("scale")
def scale(
    json: Json = None,
    seed: Seed = 0,
    edges: Annotated[float, typer.Option(help="Largest number of edges.")] = 1e7,
    sections: Annotated[str, typer.Option(help="What to measure, separated by commas.")] = "cost,peers,processes,store",
) -> None:
    """Cost from 1e5 edges upwards as ratios on one thread, beside PyG's explainers; two processes; stores."""
    from graphmask.experiments.bench import load
    from graphmask.experiments.bench.scale import SECTIONS, measure, peer_rows, process_rows, rows
    from graphmask.experiments.bench.store import rows_of

    wanted = sections.split(",")
    if unknown := set(wanted) - SECTIONS.keys():
        raise GraphMaskError(f"Expected sections among {', '.join(SECTIONS)}, got {', '.join(sorted(unknown))}.")
    figures = measure(int(edges), seed, wanted)
    if "cost" in wanted:
        header = ["edges", "explain / forward", "memory", "fit step / training step", "memory"]
        show("cost as ratios, one thread", header, rows(figures))
    if "peers" in wanted:
        header = ["edges", "explain / forward", "memory"]
        show("PyG's explainers, in forwards of the model", header, peer_rows(figures))
    if "processes" in wanted:
        header = ["processes", "s per fit step", "speed-up", "s per explained graph", "speed-up"]
        show("several processes, one thread each", header, process_rows(figures))
    if "store" in wanted:
        stored = figures["store"]
        show(
            f"{stored['rows']['rows']:,} rows of edges, {stored['rows']['disk_mb']:.0f} MB on disk",
            *rows_of(stored["rows"]),
        )
        show(f"explain_all on {stored['load']['graphs']:,} star graphs", *load.rows(stored["load"]))
    write_json(json, figures)


@app.command("gold")
def gold(
    json: Json = None,
    seeds: Annotated[int, typer.Option(help="Seeds per task.")] = 20,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    tasks: Annotated[str, typer.Option(help="Tasks, separated by commas.")] = ",".join(KNOWN),
    recipe: Annotated[str, typer.Option(help="noisy or paper.")] = "noisy",
) -> None:
    """Agreement with gold, seed by seed, and whether the gold is right for each model."""
    from graphmask.experiments.bench.gold import measure, rows, summary

    figures = measure(tasks.split(","), range(first, first + seeds), recipe)
    for task, runs in figures["tasks"].items():
        show(f"{task}, recipe {recipe}", *rows(runs))
        say(summary(task, runs))
    write_json(json, figures)


for _command in (bench_attention.sequences, bench_attention.reactions, bench_attention.minilm):
    app.command(_command.__name__)(_command)


@app.command("ablation")
def ablate(
    json: Json = None,
    models: Annotated[str, typer.Option(help="Models of the battery, separated by commas.")] = "",
    seeds: Annotated[int, typer.Option(help="Fits per variant and model.")] = 3,
    jobs: Annotated[int, typer.Option(help="Processes, one thread each.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder for models and figures, as of `bench battery`.")] = Path(
        "out/battery"
    ),
    markdown: Annotated[Path | None, typer.Option(help="Also write the table to this file.")] = None,
) -> None:
    """The recipe with one part changed at a time, and the paper's, on models of the battery; a killed run resumes."""
    from graphmask.experiments.bench import ablation
    from graphmask.experiments.bench.battery import run
    from graphmask.files import write_bytes

    names = run.choose(models.split(",") if models else ablation.MODELS)
    figures = ablation.measure(names, range(seeds), out, jobs=jobs)
    show("share kept, and kappa", *ablation.rows(figures))
    if markdown is not None:
        write_bytes(markdown, ablation.markdown(figures).encode())
    write_json(json, figures)


@app.command("store")
def store(
    json: Json = None,
    seed: Seed = 0,
    graphs: Annotated[int, typer.Option(help="Explanations to write and to analyse.")] = 1_000_000,
    rows: Annotated[float, typer.Option(help="Instead: write so many rows of edges, sum them up by type.")] = 0,
    load: Annotated[int, typer.Option(help="Instead: explain so many graphs; is the rate even?")] = 0,
    kills: Annotated[int, typer.Option(help="Instead: kill -9 writers so often; is all there, once?")] = 0,
    writers: Annotated[int, typer.Option(help="Processes that write at once, with --kills.")] = 1,
) -> None:
    """Time and peak memory of writing a store, and of every table of it, for a tenth of the graphs and for all."""
    from graphmask.experiments.bench import kills as killing
    from graphmask.experiments.bench import load as loading
    from graphmask.experiments.bench.store import measure, measure_rows, rows_of, table

    if kills:
        figures = killing.measure(kills, writers, seed)
        show("every graph is there exactly once, every shard as it was written", list(figures), [[*figures.values()]])
        return write_json(json, figures)
    if rows:
        figures = measure_rows(int(rows), seed)
        show(f"{figures['rows']:,} rows of edges, {figures['disk_mb']:.0f} MB on disk", *rows_of(figures))
        return write_json(json, figures)
    if load:
        figures = loading.measure(load, seed)
        show(f"explain_all on {figures['graphs']:,} star graphs", *loading.rows(figures))
        return write_json(json, figures)
    figures = measure(graphs, seed)
    written = figures["write"][-1]
    show("a store of random explanations: seconds, and memory beyond what the process had before", *table(figures))
    console.print(
        f"{written['graphs']:,} explanations, {written['rows']:,} rows of edges: {written['disk_mb']:.0f} MB on disk",
        highlight=False,
    )
    return write_json(json, figures)


SHARES = ("over_bound", "step_over_bound", "over_naive")


@app.command("pages")
def pages(
    json: Json = None,
    seed: Seed = 0,
    largest: Annotated[float, typer.Option(help="Largest number of edges.")] = 1e6,
    rounds: Annotated[int, typer.Option(help="Pages of each kind; the least time counts.")] = 3,
) -> None:
    """CPU seconds and size of `to_html` from 1,000 edges upwards, for a graph and for one node of it."""
    from graphmask.experiments.bench.pages import measure, rows

    figures = measure(int(largest), seed, rounds=rounds)
    show("pages of random graphs, two layers, three messages of ten kept", *rows(figures))
    write_json(json, figures)


@app.command("matrix")
def matrix(json: Json = None) -> None:
    """Peak memory of gates over adjacency matrices, beside 4 B (R N^2 + R N D) bytes and a message per entry."""
    from graphmask.experiments.bench.matrix import measure

    peaks = measure()
    show(
        "bilinear gates: peak memory, two graphs, four relations, 64 channels",
        ["nodes", "MB", "with gradients", "over 4 B (R N^2 + R N D)", "with gradients", "over a message per entry"],
        [[row["nodes"], row["call"] / 1e6, row["step"] / 1e6, *(row[key] for key in SHARES)] for row in peaks],
    )
    write_json(json, {"rows": peaks})


@app.command("transformer")
def transformer(
    json: Json = None,
    rounds: Annotated[int, typer.Option(help="Runs of either kind, in turns; the median counts.")] = 5,
    steps: Annotated[int, typer.Option(help="Steps of training, of which the mean is taken.")] = 8,
    heads: Annotated[str, typer.Option(help="Gates for each head, or together.")] = "each",
) -> None:
    """Explaining 32 sentences of 64 tokens on a model of MiniLM's size, beside one run of it: seconds and memory."""
    from graphmask.experiments.bench.transformer import measure
    from graphmask.tapping.attention import check_heads

    figures = measure(rounds, steps, check_heads(heads))
    show(
        f"{figures['sentences']} sentences of {figures['tokens']} tokens, eager attention, heads {heads}",
        ["", "seconds", "forwards", "MB of new tensors", "over forward", "with the model's weights"],
        [
            ["forward", figures["forward"], 1.0, figures["forward_bytes"] / 1e6, 1.0, 1.0],
            [
                "explain",
                figures["explain"],
                figures["explain_ratio"],
                figures["explain_bytes"] / 1e6,
                figures["memory"],
                figures["memory_with_parameters"],
            ],
            ["a step of fit", figures["step"], figures["step_ratio"], "", "", ""],
        ],
    )
    write_json(json, figures)


@app.command("leaderboard")
def leaderboard(
    json: Json = None,
    seeds: Annotated[int, typer.Option(help="Explainer seeds per set and method.")] = 5,
    sets: Annotated[str, typer.Option(help="Sets, separated by commas; all if left out.")] = "",
    methods: Annotated[str, typer.Option(help="Methods, separated by commas; all if left out.")] = "",
    out: Annotated[Path, typer.Option(help="Folder for figures set by set, Markdown and a chart.")] = Path(
        "out/leaderboard"
    ),
) -> None:
    """Edge AUC, F1, sufficiency, flips, kappa and time beside PyG's explainers as shipped; a killed run resumes."""
    from graphmask.experiments.bench.leaderboard.pages import draw, first, markdown
    from graphmask.experiments.bench.leaderboard.run import INSTANCES, figures, measure
    from graphmask.experiments.bench.leaderboard.sets import SETS
    from graphmask.files import write_bytes

    results = measure(
        sets.split(",") if sets else list(SETS), methods.split(",") if methods else list(INSTANCES), seeds, out
    )
    write_bytes(out / "leaderboard.md", markdown(results).encode())
    say(f"{out / 'leaderboard.md'}, {draw(results, out / 'leaderboard.svg')}")
    say(f"GraphMask first or tied on {sum(map(first, results.values()))} of {len(results)} sets")
    write_json(json or out / "leaderboard.json", figures(results))


@app.command("battery")
def battery(
    json: Json = None,
    models: Annotated[str, typer.Option(help="Models, separated by commas; all if left out.")] = "",
    half: Annotated[str, typer.Option(help="Only the half design or check.")] = "",
    seeds: Annotated[int, typer.Option(help="Fits per model.")] = 5,
    seed_start: Annotated[int, typer.Option(help="The first seed.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="One seed.")] = False,
    jobs: Annotated[int, typer.Option(help="Processes, one thread each.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder for trained models and for the figures fit by fit.")] = Path(
        "out/battery"
    ),
    markdown: Annotated[Path | None, typer.Option(help="Also put the tables into this page.")] = None,
) -> None:
    """Default settings on models of the kinds users have, over seeds, on test data; a killed run resumes."""
    from graphmask.experiments.bench.battery import pages, run
    from graphmask.experiments.bench.battery.summary import summary, verdicts

    names = run.choose(models.split(",") if models else None, half or None)
    chosen = range(seed_start, seed_start + (1 if quick else seeds))
    figures = summary(run.measure_all(names, chosen, out, jobs=jobs))
    show(f"default settings, fits per model: {len(chosen)}", *pages.overview(figures))
    for what, answers in verdicts(figures):
        told = ", ".join(f"{half} {answer}" for half, answer in answers.items() if answer)
        if told:
            say(f"{what}: {told}")
    if markdown is not None:
        pages.refresh(markdown, pages.markdown(figures))
    write_json(json or out / "battery.json", figures)


@app.command("peers")
def peers(
    json: Json = None,
    models: Annotated[str, typer.Option(help="Models, separated by commas; all if left out.")] = "",
    methods: Annotated[str, typer.Option(help="Methods, separated by commas; all if left out.")] = "",
    seeds: Annotated[int, typer.Option(help="Seeds per method that has seeds.")] = 5,
    out: Annotated[Path, typer.Option(help="Folder for trained models and for the figures pair by pair.")] = Path(
        "out/peers"
    ),
    collect: Annotated[bool, typer.Option(help="Tables of what is in --out already; nothing is measured.")] = False,
) -> None:
    """All methods by all metrics on models that others trained, or that anyone would train; a killed run resumes."""
    from graphmask.experiments.bench.peers import ranks, run
    from graphmask.experiments.bench.peers.models import MODELS
    from graphmask.files import write_bytes

    names = run.chosen(models.split(",") if models else None, list(MODELS), "models")
    compared = run.chosen(methods.split(",") if methods else None, run.method_names(), "methods")
    summary = ranks.summary((run.collect if collect else run.measure)(names, compared, seeds, out), seeds)
    show("mean rank over models, 1 is best", *ranks.rank_rows(summary))
    write_json(json or out / "peers.json", summary)
    write_bytes(out / "peers.md", ranks.markdown(summary).encode())


@app.command("features")
def features(
    json: Json = None,
    networks: Annotated[str, typer.Option(help="Networks, separated by commas.")] = "gcn,gin,graphconv",
    kinds: Annotated[str, typer.Option(help="Values of features=, separated by commas.")] = "nodes,each,edges",
    seeds: Annotated[int, typer.Option(help="Seeds per network and kind.")] = 10,
    out: Annotated[Path, typer.Option(help="Folder for the figures fit by fit; a killed run resumes.")] = Path(
        "out/features"
    ),
) -> None:
    """Gates on input features of networks that provably ignore some: are these dropped, and the others kept?"""
    from graphmask.experiments.bench import ignored

    results = ignored.measure(networks.split(","), kinds.split(","), seeds, out, progress=True)
    show("input features that networks ignore, and the others", *ignored.rows(results))
    write_json(
        json, {box: {kind: [one.__dict__ for one in some] for kind, some in by.items()} for box, by in results.items()}
    )


Figures = Annotated[Path, typer.Option(help="The file of figures.")]


@app.command("all")
def all_sections(
    out: Annotated[Path, typer.Option(help="Folder; a killed run resumes from what is there.")] = Path("out/bench"),
    figures: Figures = Path("docs/figures.json"),
    only: Annotated[str, typer.Option(help="Sections, separated by commas; all if left out.")] = "",
) -> None:
    """Every measurement of the documentation, one after the other, into one file with commit, versions and machine.

    Hours on two cores. All code must be committed: figures are recorded with the commit that they are of.
    """
    from graphmask.experiments.bench.figures import sections

    sections.run(sections.choose(only), out, figures, say)


@app.command("record")
def record(
    section: Annotated[str, typer.Argument(help="Name of the section.")],
    file: Annotated[Path, typer.Argument(help="What the section's command wrote with --json.")],
    figures: Figures = Path("docs/figures.json"),
    command: Annotated[str, typer.Option(help="The command, if it was not the section's own.")] = "",
    commit: Annotated[str, typer.Option(help="Of the measured code, if it is not the present one.")] = "",
) -> None:
    """Put figures that were measured by themselves into the file of figures."""
    from graphmask.experiments.bench.figures import sections

    sections.file(section, file, figures, command, commit)
    say(f"{section}: recorded in {figures}")


@app.command("tables")
def tables(
    figures: Figures = Path("docs/figures.json"),
    root: Annotated[Path, typer.Option(help="Folder with README.md and docs.")] = Path(),
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a table would change.")] = False,
) -> None:
    """Write the tables of README and docs, between their markers, from the file of figures."""
    from graphmask.experiments.bench.figures import documentation

    changed = documentation.write(root, figures, check=check)
    for page in changed:
        say(f"{'differs' if check else 'written'}: {page}")
    if check and changed:
        raise GraphMaskError(f"Expected tables as the figures have them, found others in {len(changed)} pages.")
