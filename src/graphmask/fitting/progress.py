"""The progress bar of a fit: divergence, multiplier, and the share of open gates per site."""

from __future__ import annotations

from types import TracebackType

from graphmask.bars import bar
from graphmask.fitting.training import Training
from graphmask.texts import visible

#: A bar drawn at every step would cost more than the step.
EVERY = 10


class Progress:
    def __init__(self, training: Training, *, enabled: bool) -> None:
        self.bar = bar("GraphMask", enabled=enabled)
        self.names = training.history.names
        self.task = self.bar.add_task("", total=training.steps, completed=training.step)
        self.seen = training.step
        self.verdicts = len(training.history.epochs)
        self.note = training.history.not_seen

    def __enter__(self) -> Progress:
        self.bar.start()
        if self.note and not self.bar.disable:
            self._say(self.note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.bar.stop()

    def step(self, training: Training, divergence: float, gates: list[float]) -> None:
        self.seen += 1
        if self.bar.disable or self.seen % EVERY:
            return
        shares = " ".join(f"{name} {share:.0%}" for name, share in zip(self.names, gates, strict=True))
        text = f"epoch {training.epoch + 1}  divergence {divergence:.3f}  open: {shares}"
        self.bar.update(self.task, completed=training.step, total=training.steps + training.drawn_out, description=text)

    def epoch(self, training: Training) -> None:
        if self.bar.disable or len(training.history.epochs) == self.verdicts:
            return
        self.verdicts = len(training.history.epochs)
        epoch = training.history.epochs[-1]
        verdict = epoch.verdict
        shares = " ".join(f"{name} {share:.1%}" for name, share in zip(self.names, verdict.retained, strict=True))
        self._say(
            f"epoch {epoch.epoch + 1} of {epochs_of(training)}: hard gates keep {shares}; "
            f"{standing(verdict.divergence, training.tolerance, epoch.feasible)}, "
            f"{verdict.flips:.2%} of the predictions change"
        )

    def _say(self, text: str) -> None:
        """Names of sites are the user's: no styles are taken from them, and controls are spelled out."""
        self.bar.console.print(visible(text, None), soft_wrap=True, markup=False)


def epochs_of(training: Training) -> int:
    """The number of epochs, estimated from the steps of those that are over; a phase that is extended adds to them."""
    total = training.steps + training.drawn_out
    return -(-total * training.epoch // max(training.step, 1)) if training.epoch else 1


def standing(divergence: float, tolerance: float, feasible: bool) -> str:
    """How a state stands to the tolerance, in words. A margin below it is required, because other data vary."""
    if divergence > tolerance:
        return f"NOT within tolerance: divergence {divergence:.4f} of {tolerance:.3g}"
    margin = "" if feasible else ", but without the margin for other data"
    return f"within tolerance: divergence {divergence:.4f} of {tolerance:.3g}{margin}"
