"""Which words, and which arcs of the parse, does a text classifier rely on? A notebook as a script.

Sentences such as *the cook never praised the old waiter* come with their dependency arcs. A two-layer relational
network over the arcs says whether the cook was kind: it must know the verb, and whether it is negated. GraphMask finds
out which arcs it uses; the page shows them above the words.

    python examples/text.py [DIR]           # some twenty seconds; writes DIR/text.html
"""

# %% The data: sentences, arcs, and whether somebody was kind
from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import FastRGCNConv

from graphmask import Explanation, GraphMask

PEOPLE = ["cook", "waiter", "guest", "driver", "neighbour"]
ADJECTIVES = ["old", "young", "quiet", "happy"]
GOOD, BAD = ["praised", "thanked", "liked"], ["blamed", "ignored", "mocked"]
WORDS = ["the", "not", "never", *PEOPLE, *ADJECTIVES, *GOOD, *BAD]
ARCS = ["det", "amod", "nsubj", "obj", "neg"]


def sentence(generator: torch.Generator) -> Data:
    """One sentence; arcs run from a word to its head, and back under a name of their own."""

    def one_of(words: list[str]) -> str:
        return words[int(torch.randint(len(words), (), generator=generator))]

    def chance(p: float) -> bool:
        return bool(torch.rand((), generator=generator) < p)

    tokens: list[str] = []
    arcs: list[tuple[int, int, str]] = []

    def noun_phrase() -> int:
        words = ["the", *([one_of(ADJECTIVES)] if chance(0.5) else []), one_of(PEOPLE)]
        start, head = len(tokens), len(tokens) + len(words) - 1
        tokens.extend(words)
        arcs.extend((start + i, head, "det" if word == "the" else "amod") for i, word in enumerate(words[:-1]))
        return head

    subject = noun_phrase()
    negation = one_of(["not", "never"]) if chance(0.5) else None
    if negation:
        tokens.append(negation)
    verb = len(tokens)
    tokens.append(one_of(GOOD if chance(0.5) else BAD))
    arcs.append((subject, verb, "nsubj"))
    if negation:
        arcs.append((verb - 1, verb, "neg"))
    arcs.append((noun_phrase(), verb, "obj"))
    word, head = torch.tensor([(a, b) for a, b, _ in arcs]).T
    kind = torch.tensor([ARCS.index(name) for _, _, name in arcs])
    return Data(
        x=nn.functional.one_hot(torch.tensor([WORDS.index(t) for t in tokens]), len(WORDS)).float(),
        edge_index=torch.stack([torch.cat([word, head]), torch.cat([head, word])]),
        edge_type=torch.cat([kind, kind + len(ARCS)]),
        y=torch.tensor((tokens[verb] in GOOD) != (negation is not None)).long(),
        verb=verb,
        tokens=tokens,
    )


# %% The model: two relational layers, read at the verb
class Reader(nn.Module):
    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.first = FastRGCNConv(len(WORDS), size, 2 * len(ARCS))
        self.second = FastRGCNConv(size, size, 2 * len(ARCS))
        self.out = nn.Linear(size, 2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor, verb: Tensor, ptr: Tensor) -> Tensor:
        h = self.first(x, edge_index, edge_type).relu()
        h = self.second(h, edge_index, edge_type).relu()
        return self.out(h[ptr[:-1] + verb])


def train(loader: DataLoader, epochs: int = 12) -> Reader:
    model = Reader()
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(epochs):
        for batch in loader:
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(
                model(batch.x, batch.edge_index, batch.edge_type, batch.verb, batch.ptr), batch.y
            )
            loss.backward()
            optimiser.step()
    return model.eval()


# %% Fit GraphMask, explain sentences it has not seen
def main(out: Path, seed: int = 0, epochs: int | None = None) -> dict[str, float]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    sentences = [sentence(generator) for _ in range(1500)]
    loader = DataLoader(sentences[:1200], batch_size=32, shuffle=True)
    unseen = sentences[1200:]
    model = train(loader)
    explainer = GraphMask(model, seed=seed)
    explainer.fit(loader, epochs=epochs)
    explanations = list(explainer.explain_all(DataLoader(unseen, batch_size=32)))
    names = [*ARCS, *(f"{name}, back" for name in ARCS)]
    shares = {}
    for number, name in enumerate(names):
        open_, all_ = (
            sum(int(getattr(e, what)[:, e.edge_type == number].sum()) for e in explanations)  # type: ignore[index]
            for what in ("kept", "carried")
        )
        shares[name] = open_ / all_
        print(f"{name:12} kept {shares[name]:6.1%}")
    right = [bool(e.original.argmax() == s.y) for e, s in zip(explanations, unseen, strict=True)]
    shares["right"] = sum(right) / len(right)
    shares["faithful"] = sum(e.faithful for e in explanations) / len(explanations)
    print(f"model right: {shares['right']:.1%}, explanations within tolerance: {shares['faithful']:.1%}")
    negated = [number for number, data in enumerate(unseen) if {"not", "never"} & set(data.tokens)][:12]
    show([explanations[n] for n in negated], [unseen[n] for n in negated], names, out / "text.html")
    return shares


# %% The page: arcs above the words
def show(explanations: list[Explanation], sentences: list[Data], names: list[str], path: Path) -> None:
    from graphmask.report.build import write_report

    for explanation, data in zip(explanations, sentences, strict=True):
        explanation.info = {
            "title": " ".join(data.tokens),
            "tokens": data.tokens,
            "edge_labels": [names[kind] for kind in data.edge_type.tolist()],
            "label": int(data.y),
            "classes": ["unkind", "kind"],
        }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_report(path, explanations, title="What a reader of sentences relies on")
    print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/examples"))
