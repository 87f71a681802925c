"""The questions that this library asks about a batch; `plain_batches` and `hetero_batches` implement them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from torch import Tensor

from graphmask.graphs.edges import EdgeMap
from graphmask.graphs.layout import Types
from graphmask.graphs.splits import Split


class Adapter(ABC):
    """Reads batches of one kind. It has no state: the batch is passed to every question."""

    by_type: ClassVar[bool]  #: are attributes dictionaries by node or edge type?

    @abstractmethod
    def attribute(self, batch: Any, name: str) -> Any:
        """The value for a model's argument of this name; None where there is none."""

    @abstractmethod
    def items(self, batch: Any) -> Iterable[tuple[str, Any]]:
        """Everything in it, by name."""

    @abstractmethod
    def features(self, batch: Any, name: str) -> Tensor | None:
        """The input features ``x`` or ``edge_attr``; None where there are none, or several by type."""

    @abstractmethod
    def with_value(self, batch: Any, name: str, value: Tensor) -> Any:
        """A batch like this one with other features; this one is not changed."""

    @abstractmethod
    def contents(self, batch: Any) -> str:
        """A readable description of the batch: its kind and its attributes."""

    @abstractmethod
    def edge_index(self, batch: Any) -> Tensor | None:
        """The graph as the user passed it, [2, E]; None when only the model knows it (taps)."""

    @abstractmethod
    def edge_map(self, batch: Any) -> EdgeMap:
        """An object that matches the edges of a layer's call to the user's edges."""

    @abstractmethod
    def num_nodes(self, batch: Any, edge_index: Tensor | None) -> int | None:
        """The number of all nodes; None where it is not known."""

    @abstractmethod
    def types(self, batch: Any) -> Types | None:
        """Node and edge types; None where there is one of each."""

    @abstractmethod
    def kinds(self, batch: Any) -> int:
        """How many edge types have edges here; 0 where edges have no types."""

    @abstractmethod
    def first_nodes(self, batch: Any, count: int) -> list[int]:
        """The first node of every node type with this many nodes; empty where nodes have no types."""

    @abstractmethod
    def labels(self, batch: Any, rows: int) -> tuple[Tensor | None, Tensor | None]:
        """``y`` of graphs, nodes or output rows, and the graph of each where that is known."""

    @abstractmethod
    def check_edges(self, batch: Any, where: str) -> None:
        """Raise for edges that cannot exist."""

    @abstractmethod
    def split(self, batch: Any, edge_index: Tensor, rows: int) -> Split:
        """The batch's division into its graphs."""

    @abstractmethod
    def sizes(self, batch: Any) -> Tensor | None:
        """[1, T] nodes by node type; None where there is one type."""

    @abstractmethod
    def single(self, batch: Any) -> Any:
        """A batch of one graph as that graph."""

    @abstractmethod
    def without_edges(self, batch: Any, gone: Tensor) -> Any:
        """The batch without these edges (bool [E]); None where they cannot be removed."""
