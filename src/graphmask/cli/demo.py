"""`graphmask demo`: train, fit, explain and compare on a task with a known answer."""

from __future__ import annotations

from pathlib import Path

from graphmask.cli.common import Json, Out, Seed, console, say, show, write_json


def demo(seed: Seed = 0, out: Out = Path("out/demo"), json: Json = None) -> None:
    """Train a model on star graphs, fit GraphMask, compare with the known answer, write a page."""
    from graphmask.experiments import gold, runner
    from graphmask.experiments.settings import DEMO
    from graphmask.experiments.task_page import write_task_page

    task = DEMO.task
    console.print(DEMO.story)
    console.print("1. training the model ...")
    with runner.one_thread():
        trained = runner.train_model(task, seed, progress=True)
    console.print(f"   right on {trained[1]['accuracy']:.2%} of 5,000 graphs it never saw")
    console.print("2. fitting GraphMask (the model stays as it is) ...")
    with runner.one_thread():
        run = runner.run(task, seed, trained=trained)
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
    page = write_task_page(out / f"{task}.html", run, task)
    run.explainer.save(out / f"{task}.graphmask")
    say(f"4. open this page: {page}")
    write_json(json, figures)
