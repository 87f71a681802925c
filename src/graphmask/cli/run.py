"""`graphmask run TASK`: train the task's model, fit GraphMask, explain, compare, write everything to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphmask import launch
from graphmask.cli import qa, srl
from graphmask.cli.common import TASKS, Json, Seed, console, gold_rows, show, write_json
from graphmask.errors import GraphMaskError


def run(
    task: Annotated[str, typer.Argument(help=f"One of {', '.join(TASKS)}, srl, qa.")],
    seed: Seed = 0,
    recipe: Annotated[str, typer.Option(help="How gates are trained: noisy or paper.")] = "noisy",
    tolerance: Annotated[
        float | None, typer.Option(help="Divergence that is still the same prediction; 0.03, for srl and qa by preset.")
    ] = None,
    model: Annotated[str, typer.Option(help="srl: lstm (BiLSTM and one GNN layer) or gnn (two GNN layers).")] = "lstm",
    data: Annotated[
        Path | None, typer.Option(help="srl: folder of CoNLL-2009 files; qa: folder of Re-DocRED or WikiHop files.")
    ] = None,
    preset: Annotated[str, typer.Option(help="srl, qa: sizes, small (two cores) or paper.")] = "small",
    gold_trees: Annotated[bool, typer.Option(help="srl: trees, lemmas, tags from the gold columns.")] = False,
    accumulate: Annotated[int, typer.Option(help="star, relay: batches per step, in each process.")] = 1,
    precision: Annotated[str | None, typer.Option(help="star, relay: bf16 runs the model under autocast.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for what is written; out/TASK, or out/TASK-SEED.")] = None,
    json: Json = None,
) -> None:
    """Train a task's model, fit GraphMask, explain fresh graphs (without repair) and compare with the known answer."""
    if task in ("srl", "qa") and launch.launched() > 1:
        raise GraphMaskError(f"Expected star or relay in several processes, got {task}. Start it by itself.")
    if task == "srl":
        return srl.run(model, seed, tolerance, data, preset, out, json, predicted=not gold_trees)
    if task == "qa":
        return qa.run(seed, tolerance, data, preset, out, json)
    _run(task, seed, recipe, 0.03 if tolerance is None else tolerance, accumulate, precision, out, json)


def _run(
    task: str,
    seed: int,
    recipe: str,
    tolerance: float,
    accumulate: int,
    precision: str | None,
    out: Path | None,
    json: Path | None,
) -> None:
    """A task whose answer is known."""
    from graphmask import experiments
    from graphmask.cli.task_page import write_task_page
    from graphmask.experiments import folder, runner
    from graphmask.store.files import require

    experiments.get(task)
    require()  # what is written at the end must not fail for a missing package
    out = out or Path("out") / (f"{task}-{seed}" if seed else task)
    folder.check_free(out, task=task, seed=seed, recipe=recipe, tolerance=tolerance, precision=precision)
    unfinished = out / "unfinished.safetensors"
    console.print(f"training the {task} model ...")
    with runner.one_thread():
        trained = runner.train_model(task, seed)
    console.print(f"fitting GraphMask to it (accuracy {trained[1]['accuracy']:.2%}) ...")
    with runner.one_thread():
        result = runner.run(
            task,
            seed,
            recipe=recipe,
            tolerance=tolerance,
            trained=trained,
            checkpoint=unfinished,
            accumulate=accumulate,
            precision=precision,
        )
    figures = result.figures
    show(
        f"{task}, seed {seed}: kept edges against gold, per cent",
        ["site", "precision", "recall", "F1"],
        gold_rows(figures),
    )
    keys = ["retained", "divergence", "flips", "faithful", "fit_seconds", "fit_cpu_seconds", "explain_ms"]
    show("the rest", ["figure", "value"], [[key, figures[key]] for key in keys])
    write_json(json, figures)
    folder.write(out, result)
    page = write_task_page(out / f"{task}.html", result, task) if launch.first() else None
    if launch.first():
        unfinished.unlink(missing_ok=True)
    console.print(f"page: {page}\nnext: graphmask analyse {out} && graphmask report {out}", highlight=False)
