"""Determines the site to which the next call of a layer belongs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from graphmask.errors import GraphMaskError
from graphmask.graphs.edges import EdgeMap, EdgeType, Matched
from graphmask.graphs.sites import Site


class Locator:
    """Counts the calls of layers while a model runs; finds the sites where they are not known yet."""

    def __init__(
        self, edge_map: EdgeMap, sites: tuple[Site, ...] | None, kinds: Mapping[str, str] | None = None
    ) -> None:
        self.edge_map = edge_map
        self.kinds = kinds or {}  # the classes of modules, for the sites that are found
        self.discovering = sites is None
        self.sites: list[Site] = list(sites or ())
        self.site_of = {
            (site.module, call): (number, piece)
            for number, site in enumerate(self.sites)
            for piece, call in enumerate(site.calls)
        }
        self.period = {site.module: 0 for site in self.sites}
        for site in self.sites:
            self.period[site.module] += len(site.calls)
        self.calls: dict[str, int] = {}  # in this run of the model
        self.covered: dict[str, Tensor] = {}
        #: Of calls that are told by their edge types, what each carries, and which were made in this run.
        self.carries = {
            (site.module, call): frozenset(kinds)
            for site in self.sites
            for call, kinds in zip(site.calls, site.types, strict=False)
        }
        self.made: set[tuple[str, int]] = set()
        edge_map.restart()

    def restart(self) -> None:
        """A new run of the model begins: count calls from zero."""
        self.calls.clear()
        self.covered.clear()
        self.made.clear()
        self.edge_map.restart()

    def check_complete(self) -> None:
        """Raise unless every site was visited exactly as when the sites were found."""
        for (module, call), kinds in self.carries.items():
            # A layer is not called for an edge type that a batch does not have.
            if (module, call) not in self.made and self.edge_map.has_edges(tuple(kinds)):
                raise GraphMaskError(
                    f"Expected module {module!r} to send along {_names(kinds)}, as when the sites were found, but it "
                    "was not called. The model's message passing must not depend on its input."
                )
        typed = {module for module, _ in self.carries}
        for module, period in self.period.items():
            if module not in typed and self.calls.get(module, 0) != period:
                raise GraphMaskError(
                    f"Expected {period} message passing call(s) of module {module!r}, as when the sites were found, "
                    f"got {self.calls.get(module, 0)}. The model's message passing must not depend on its input."
                )

    def locate(self, module: str, matched: Matched, reverse: bool = False) -> tuple[int, int]:
        """The site and piece of this module's next call, which sends along these edges."""
        call = self.calls.get(module, 0)
        self.calls[module] = call + 1
        if not self.discovering:
            if module not in self.period:
                raise GraphMaskError(
                    f"Module {module!r} sends messages, but sent none when the sites were found. "
                    "The model's message passing must not depend on its input."
                )
            if matched.types is not None and (module, 0) in self.carries:
                return self.site_of[module, self._call_of_types(module, frozenset(matched.types))]
            expected = (module, call % self.period[module])
            if expected not in self.site_of:
                raise GraphMaskError(
                    f"Expected a site for call {expected[1]} of module {module!r}, got sites of its other calls only. "
                    "Use what was made with this model."
                )
            return self.site_of[expected]
        return self._discover(module, call, matched, reverse != matched.flipped)

    def below(self, name: str) -> int:
        """The site of input features: no module calls it, and it precedes all other sites."""
        module = f"batch.{name}"
        for number, site in enumerate(self.sites):
            if site.module == module:
                return number
        assert self.discovering
        self.sites.insert(0, Site(name, module, ()))
        return 0

    def _call_of_types(self, module: str, kinds: frozenset[EdgeType]) -> int:
        """The number of a layer's call by edge type; counting alone fails, as types that a batch lacks have no call."""
        fitting = [call for (name, call), known in self.carries.items() if name == module and kinds <= known]
        if not fitting:
            raise GraphMaskError(
                f"Module {module!r} sends along {_names(kinds)}, but did not when the sites were found. "
                "The model's message passing must not depend on its input."
            )
        left = [call for call in fitting if (module, call) not in self.made]
        if not left:  # a further run of the model
            self.made -= {(module, call) for call in fitting}
            left = fitting
        self.made.add((module, left[0]))
        return left[0]

    def _discover(self, module: str, call: int, matched: Matched, reverse: bool) -> tuple[int, int]:
        # One place more for the layer's own self-loops (-1): hops that carry only those are hops, not relations.
        carried = torch.zeros(self.edge_map.count + 1, dtype=torch.bool)
        carried[slice(self.edge_map.count) if matched.edges is None else matched.edges.cpu()] = True
        before, kinds = self.covered.get(module), matched.types
        number = max((n for n, site in enumerate(self.sites) if site.module == module), default=-1)
        if before is not None and not bool((before & carried).any()):
            self.covered[module] = before | carried
            site = self.sites[number]
            reverse = site.reverse if bool(before.any()) else reverse  # an empty relation has no direction
            types = site.types if kinds is None else (*site.types, kinds)
            self.sites[number] = replace(site, calls=(*site.calls, call), reverse=reverse, types=types)
            return number, len(site.calls)
        self.covered[module] = carried
        repeat = sum(site.module == module for site in self.sites)
        name = f"{module}#{repeat}" if repeat else module
        layer = self._layer(matched.layer, kinds or ())
        types = () if kinds is None else (kinds,)
        self.sites.append(Site(name, module, (call,), reverse, types, layer, kind=self.kinds.get(module, "")))
        return len(self.sites) - 1, 0

    def _layer(self, base: str, kinds: tuple[EdgeType, ...]) -> str:
        """The name of a layer: one that comes again with an edge type it had is another layer."""
        name, repeat = base, 0
        while base and any(site.layer == name and {*site.edge_types} & {*kinds} for site in self.sites):
            repeat += 1
            name = f"{base}#{repeat}"
        return name


def _names(kinds: frozenset[EdgeType]) -> str:
    return "edge type " + ", ".join(str(kind) for kind in sorted(kinds))
