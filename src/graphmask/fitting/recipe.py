"""How gates are trained: the settings of the default and of the paper's recipe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """The settings of the training; `docs/recipe.md` gives the reasons, and the effect of each part on the battery.

    There are two phases. First gates are *noisy* while the target divergence rises from almost none to most of the
    tolerance; then they are hard and fixed, and baselines *settle*. Thresholds are chosen at the end.
    """

    name: str = "noisy"
    steps: int = 1000  #: at least, in whole epochs; up to 2.5 times as many where there is more to drop
    learning_rate: float = 5e-3  #: falls to zero towards the end of the noisy phase
    baseline_rate: float = 1e-2  #: in units of the messages' spread
    start: str = "auto"  #: baselines start at "zero", at the "mean" message, or at what goes unnoticed more often
    first_aim: float = 0.05  #: share of the tolerance that is aimed at in the beginning ...
    last_aim: float = 0.6  #: ... and from `risen` on; geometrically in between
    risen: float = 0.7  #: share of the noisy phase
    settle: float = 0.15  #: share of the steps in which gates are hard and baselines adapt to them
    initial_location: float | None = 1.0  #: gates start open, all alike; None: as they are drawn, different ones
    drawn: bool = (
        False  #: the seed draws the first weights of gate networks; otherwise they are the same for every seed
    )
    sampled: bool = False  #: Hard Concrete samples and the authors' loss instead of noisy gates priced by location
    penalty_scale: float = 5.0  #: of the authors' loss
    opened: float = 0.5  #: of the authors' recipe: sites are opened from the top down during this share of the steps
    dropout: bool = False  #: the model's own dropout is on while gates are trained


#: The authors' loss and constants on this library's gate networks: Hard Concrete samples, a hinge on the divergence of
#: every example, a multiplier that is the softplus of what centred RMSprop moves, sites opened from the top down.
PAPER = Recipe(
    name="paper",
    steps=4000,
    learning_rate=5e-4,
    baseline_rate=1e-3,
    start="zero",
    settle=0.0,
    initial_location=None,
    drawn=True,
    sampled=True,
)
#: "concave" is what the default used to be called.
RECIPES = {"noisy": Recipe(), "concave": Recipe(), "paper": PAPER}
