"""`graphmask run TASK`: train the task's model, fit GraphMask, explain, compare, write everything to a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from graphmask.cli import names, qa, srl
from graphmask.cli.common import Json, Seed, console, gold_rows, show, write_json
from graphmask.errors import GraphMaskError
from graphmask.launch import first, launched

if TYPE_CHECKING:
    from torch import nn

#: A model that is trained while its gates are not fitted yet; a run that was stopped goes on with it.
TRAINED, UNFINISHED = "unfinished-model.safetensors", "unfinished.safetensors"


class Tasks(TyperGroup):
    """Its commands are tasks."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-"):
            names.check("a task", args[0], self.commands)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Tasks,
    help="Train a task's model, fit GraphMask, explain fresh graphs (without repair) and compare with what is known. "
    "Tasks with a known answer: star, relay. Studies on text: srl, qa. All take --seed, --tolerance, --out and --json; "
    "`graphmask run srl --help` shows the rest.",
    no_args_is_help=True,
)
Tolerance = Annotated[float | None, typer.Option(help="Divergence that is still the same prediction.")]
Folder = Annotated[Path | None, typer.Option(help="Folder for what is written; out/TASK by default.")]
Preset = Annotated[str, typer.Option(help="Sizes: small (two cores) or paper.")]


def _known(task: str, question: str) -> Callable[..., None]:
    def command(
        seed: Seed = 0,
        recipe: Annotated[str, typer.Option(help="How gates are trained: noisy or paper.")] = "noisy",
        tolerance: Tolerance = None,
        accumulate: Annotated[int, typer.Option(help="Batches per step, in each process.")] = 1,
        precision: Annotated[str | None, typer.Option(help="bf16 runs the model under autocast.")] = None,
        out: Folder = None,
        json: Json = None,
        again: Annotated[bool, typer.Option(help="Repeat a run that is finished.")] = False,
    ) -> None:
        run(task, seed, recipe, tolerance, accumulate, precision, out, json, again=again)

    command.__doc__ = f"{question} The answer is known; the table says how much of it was found."
    return command


app.command("star")(_known("star", "Are there more edges of one colour than of another?"))
app.command("relay")(_known("relay", "The same over two layers: leaves report to mids, mids to the root."))


@app.command("srl")
def _srl(
    model: Annotated[str, typer.Option(help="lstm (BiLSTM and one GNN layer) or gnn (two GNN layers).")] = "lstm",
    data: Annotated[Path | None, typer.Option(help="Folder of CoNLL-2009 files; found through GRAPHMASK_DATA.")] = None,
    preset: Preset = "small",
    gold_trees: Annotated[bool, typer.Option(help="Trees, lemmas and tags from the gold columns.")] = False,
    seed: Seed = 0,
    tolerance: Tolerance = None,
    out: Folder = None,
    json: Json = None,
) -> None:
    """Semantic role labelling, the paper's section 6. An interrupted run goes on."""
    _alone("srl")
    names.check("a model", model, ("lstm", "gnn"))
    _check(tolerance, data)
    out = out or Path("out") / f"srl-{model}"
    with _resumable(out, f"graphmask run srl --model {model} --out {out}"):
        srl.run(model, seed, tolerance, data, preset, out, json, predicted=not gold_trees)


@app.command("qa")
def _qa(
    data: Annotated[
        Path | None, typer.Option(help="Folder of Re-DocRED or WikiHop files; found through GRAPHMASK_DATA.")
    ] = None,
    preset: Preset = "small",
    seed: Seed = 0,
    tolerance: Tolerance = None,
    out: Folder = None,
    json: Json = None,
) -> None:
    """Multi-hop questions, the paper's section 5. An interrupted run goes on."""
    _alone("qa")
    _check(tolerance, data)
    out = out or Path("out") / "qa"
    with _resumable(out, f"graphmask run qa --out {out}"):
        qa.run(seed, tolerance, data, preset, out, json)


def _alone(task: str) -> None:
    if launched() > 1:
        raise GraphMaskError(f"Expected star or relay in several processes, got {task}. Start it by itself.")


def _check(tolerance: float | None, data: Path | None = None) -> None:
    if tolerance is not None and not 0 < tolerance < float("inf"):
        raise GraphMaskError(f"Expected --tolerance to be above 0, got {tolerance:g}.")
    if data is not None and not data.is_dir():
        raise GraphMaskError(f"Expected --data to be a folder, found none at {data}.")


@contextmanager
def _resumable(out: Path, command: str) -> Iterator[None]:
    """Ctrl-C is not a crash: say what is there and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        saved = sorted(path.name for path in out.glob("*")) if out.is_dir() else []
        kept = f"Saved in {out}: {', '.join(saved)}." if saved else f"Nothing was saved in {out} yet."
        advice = "goes on from there" if saved else "starts again"
        console.print(f"\nstopped. {kept} The same command {advice}: {command}", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None


def run(
    task: str,
    seed: int,
    recipe: str,
    tolerance: float | None,
    accumulate: int,
    precision: str | None,
    out: Path | None,
    json: Path | None,
    *,
    again: bool = False,
) -> None:
    """Everything is checked before the first step: training takes a minute."""
    from graphmask.fitting.recipe import RECIPES

    names.check("a recipe", recipe, RECIPES)
    names.check_least("--accumulate", accumulate, 1)
    names.check_least("--seed", seed, 0)
    if precision is not None:
        names.check("a precision", precision, names.PRECISIONS)
    _check(tolerance)
    tolerance = 0.03 if tolerance is None else tolerance
    from graphmask.cli.task_page import write_task_page
    from graphmask.experiments import folder, runner
    from graphmask.store.files import require

    require()  # what is written at the end must not fail for a missing package
    out = out or Path("out") / (f"{task}-{seed}" if seed else task)
    folder.check_free(out, task=task, seed=seed, recipe=RECIPES[recipe].name, tolerance=tolerance, precision=precision)
    following = f"next: graphmask analyse {out} && graphmask report {out}"
    if (out / folder.FIGURES).exists() and not again:
        console.print(
            f"{out} holds this run, finished. Nothing was done; --again repeats it.\n{following}", highlight=False
        )
        return write_json(json, folder.figures_of(out))
    with _resumable(out, f"graphmask run {task} --seed {seed} --out {out}"):
        model, about = _trained(task, seed, out)
        resumes = "going on with" if (out / UNFINISHED).exists() else "fitting"
        console.print(f"{resumes} GraphMask (the model's accuracy is {about['accuracy']:.2%}) ...", highlight=False)
        with runner.one_thread():
            result = runner.run(
                task,
                seed,
                recipe=recipe,
                tolerance=tolerance,
                trained=(model, about),
                checkpoint=out / UNFINISHED,
                accumulate=accumulate,
                precision=precision,
            )
        _tell(task, seed, result.figures)
        write_json(json, result.figures)
        folder.write(out, result)
        page = write_task_page(out / f"{task}.html", result, task) if first() else None
    if first():
        for name in (UNFINISHED, TRAINED):
            (out / name).unlink(missing_ok=True)
    console.print(f"page: {page}\n{following}", highlight=False)


def _tell(task: str, seed: int, figures: dict[str, Any]) -> None:
    title = f"{task}, seed {seed}: kept edges against gold, per cent"
    show(title, ["site", "precision", "recall", "F1"], gold_rows(figures))
    keys = ["retained", "divergence", "flips", "faithful", "fit_seconds", "fit_cpu_seconds", "explain_ms"]
    show("the rest", ["figure", "value"], [[key, figures[key]] for key in keys])


def _trained(task: str, seed: int, out: Path) -> tuple[nn.Module, dict[str, float]]:
    """The task's model: as a run that was stopped left it, or trained now and kept for one that will be."""
    from graphmask import experiments, files
    from graphmask.experiments import runner

    kept = out / TRAINED
    if kept.exists():
        tensors, about = files.read(kept, "model")
        if (about.pop("task", None), about.pop("seed", None)) == (task, seed):
            console.print(f"the {task} model was trained before: {kept}", highlight=False)
            model = experiments.get(task).make(seed=seed)
            with files.understood(kept, "model"):
                model.load_state_dict(tensors)
            return model.eval(), about
    console.print(f"training the {task} model ...")
    with runner.one_thread():
        model, about = runner.train_model(task, seed)
    if first() and launched() == 1:  # of several processes each trains its own
        files.write(kept, "model", model.state_dict(), {"task": task, "seed": seed, **about})
    return model, about
