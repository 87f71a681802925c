"""One run of a study, step by step: data, model, gates, explanations, figures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from graphmask import locks, team
from graphmask.experiments import folder
from graphmask.experiments.study import Context, CorpusT, ModelT, Run, Study
from graphmask.launch import first


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Inside, torch computes on one thread, if that is wanted."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if wanted else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run(study: Study[CorpusT, ModelT], context: Context) -> Run[CorpusT, ModelT]:
    """Train (or go on training), fit gates (or go on), explain the test part, measure; all of it in the folder.

    In several processes all end with the whole run, and the first one writes. Another run at the same folder is
    refused as long.
    """
    together = team.team()
    with locks.alone_at(context.folder, together.rank, together.size):
        return _run(study, context)


def _run(study: Study[CorpusT, ModelT], context: Context) -> Run[CorpusT, ModelT]:
    with one_thread(study.one_thread):
        corpus = study.prepare(context)
        model, trained = study.train(corpus, context)
        checkpoint = context.at(study.checkpoint)
        begun = checkpoint is not None and checkpoint.exists()
        context.say(f"{'going on with' if begun else 'fitting'} GraphMask ...")
        cpu = time.process_time()
        explainer = study.fit(corpus, model, seed=study.settings.seed, checkpoint=checkpoint, progress=context.progress)
        cpu = time.process_time() - cpu
        explanations, explained = study.explain(corpus, model, explainer, context)
        history = explainer.history
        assert history is not None
        figures = {
            "task": study.settings.task,
            **study.record(),
            **trained,
            **study.measure(corpus, model, explainer, explanations),
            **explained,
            "feasible": bool(history.feasible),
            "fit_steps": history.steps,
            "fit_seconds": history.seconds,  # of all parts of a fit that was stopped and gone on with
            "fit_cpu_seconds": cpu,  # of this process
        }
    result = Run(study, context.folder, figures, corpus, model, explainer, explanations)
    if context.folder is not None and first():
        folder.save(context.folder, result)
        for name in study.temporary:
            (context.folder / name).unlink(missing_ok=True)
    return result
