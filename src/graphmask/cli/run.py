"""`graphmask run TASK`: train the task's model, fit GraphMask, explain, compare, write everything to a folder.

Each study of `experiments.settings.STUDIES` becomes a command; its options are the fields of its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from graphmask.cli import names
from graphmask.cli.common import Json, say, show, write_json
from graphmask.errors import GraphMaskError
from graphmask.experiments.settings import STUDIES, Settings
from graphmask.launch import first, launched


class Tasks(TyperGroup):
    """A group whose commands are the tasks."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-"):
            names.check("a task", args[0], self.commands)
        return super().resolve_command(ctx, args)


def _listed() -> str:
    """The tasks by kind."""
    kinds: dict[str, list[str]] = {}
    for name, settings in STUDIES.items():
        kinds.setdefault(settings.kind, []).append(name)
    return " ".join(f"{kind}: {', '.join(tasks)}." for kind, tasks in kinds.items())


app = typer.Typer(
    cls=Tasks,
    help="Train a task's model, fit GraphMask, explain fresh graphs (without repair) and compare with what is known. "
    f"{_listed()} All take --seed, --tolerance, --out and --json; `graphmask run TASK --help` shows the rest.",
    no_args_is_help=True,
)
Folder = Annotated[Path | None, typer.Option(help="Folder for what is written; out/TASK by default.")]
Again = Annotated[bool, typer.Option(help="Repeat a run that is finished.")]


def _command(kind: type[Settings]) -> Callable[..., None]:
    """A function with the settings as its parameters, as typer needs it."""

    def command(*, out: Path | None, json: Path | None, again: bool = False, **asked: Any) -> None:
        run(kind(**asked), out, json, again=again)

    hints = get_type_hints(kind)
    options: dict[str, tuple[Any, Any]] = {
        each.name: (Annotated[hints[each.name], typer.Option(help=each.metadata["help"])], each.default)
        for each in fields(kind)
        if each.metadata
    }
    options |= {"out": (Folder, None), "json": (Json, None)}
    if kind.identity:
        options["again"] = (Again, False)
    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {name: annotation for name, (annotation, _) in options.items()}
    command.__doc__ = kind.about
    return command


for _name, _settings in STUDIES.items():
    app.command(_name)(_command(_settings))


@contextmanager
def _resumable(out: Path, command: str) -> Iterator[None]:
    """Ctrl-C is not a crash: say what is there and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        saved = sorted(path.name for path in out.glob("*")) if out.is_dir() else []
        left = f"Saved in {out}: {', '.join(saved)}." if saved else f"Nothing was saved in {out} yet."
        advice = "goes on from there" if saved else "starts again"
        say(f"\nstopped. {left} The same command {advice}: {command}")
        raise typer.Exit(130) from None


def run(settings: Settings, out: Path | None, json: Path | None, *, again: bool = False) -> None:
    """Carry out a study. All options are checked before the first step, because training takes a minute."""
    if launched() > 1 and not settings.several_processes:
        able = " or ".join(name for name, each in STUDIES.items() if each.several_processes)
        raise GraphMaskError(f"Expected {able} in several processes, got {settings.task}. Start it by itself.")
    settings.check()
    from graphmask.experiments import folder, stages
    from graphmask.experiments.study import Context, of
    from graphmask.store.files import require

    require()  # what is written at the end must not fail for a missing package
    study = of(settings)
    out = out or Path("out") / settings.folder
    following = f"next: graphmask analyse {out} {study.analyse_with}".rstrip() + f" && graphmask report {out}"
    if settings.identity:
        wanted = {"task": settings.task, **study.record()}
        folder.check_free(out, **{key: wanted[key] for key in settings.identity})
        if (out / folder.FIGURES).exists() and not again:
            say(f"{out} holds this run, finished. Nothing was done; --again repeats it.\n{following}")
            return write_json(json, folder.figures_of(out))
    with _resumable(out, f"{settings.command} --out {out}"):
        result = stages.run(study, Context(out, say=say))
        for table in study.shown(result.figures):
            show(*table)
        write_json(json, result.figures)
        for page in study.pages(result) if first() else ():
            say(f"page: {page}")
    say(following)
