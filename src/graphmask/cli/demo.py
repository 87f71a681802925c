"""`graphmask demo`: the whole story on star graphs, in about a minute."""

from __future__ import annotations

from pathlib import Path

from graphmask.cli.common import Json, Out, Seed, console, show, write_json


def demo(seed: Seed = 0, out: Out = Path("out/demo"), json: Json = None) -> None:
    """Train a star-graph model, fit GraphMask, compare with the known answer, write a page."""
    from graphmask.experiments import gold, runner
    from graphmask.experiments.task_page import write_task_page

    console.print(
        "A model is shown a star of coloured edges and asked: are there more of one colour than of another?\n"
        "It must count the edges of those two colours, and no others. Does GraphMask find that out?\n"
    )
    console.print("1. training the model ...")
    with runner.one_thread():
        trained = runner.train_model("star", seed)
    console.print(f"   right on {trained[1]['accuracy']:.2%} of 5,000 graphs it never saw")
    console.print("2. fitting GraphMask (the model stays as it is) ...")
    with runner.one_thread():
        run = runner.run("star", seed, trained=trained)
    figures = run.figures
    show(
        f"3. kept edges of {len(run.explanations):,} fresh graphs against the edges the model must use, per cent",
        gold.HEADER,
        gold.rows(figures),
    )
    console.print(
        f"   {figures['retained']:.1%} of the messages kept; with the others replaced, {figures['flips']:.2%} of the "
        f"predictions change (divergence {figures['divergence']:.2g}, tolerance {figures['tolerance']})",
        highlight=False,
    )
    page = write_task_page(out / "star.html", run, "star")
    run.explainer.save(out / "star.graphmask")
    console.print(f"4. open this page: {page}", highlight=False)
    write_json(json, figures)
