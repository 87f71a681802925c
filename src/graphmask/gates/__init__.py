"""Gates: the Hard Concrete distribution, the networks that locate it, and the probe that holds them all."""

from graphmask.gates.networks import INITIAL_LOCATION, BilinearGate, EdgeGate, Gate, SiteSpec, build

__all__ = ["INITIAL_LOCATION", "BilinearGate", "EdgeGate", "Gate", "SiteSpec", "build"]
