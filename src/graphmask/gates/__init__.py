"""Gates: the Hard Concrete distribution, the gate networks that compute its location, and the probe of all of them."""

from graphmask.gates.networks import INITIAL_LOCATION, BilinearGate, EdgeGate, Gate, SiteSpec, build

__all__ = ["INITIAL_LOCATION", "BilinearGate", "EdgeGate", "Gate", "SiteSpec", "build"]
