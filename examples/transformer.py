"""Which attention does my classifier need? A notebook as a script.

Sentences such as *the cook never praised the old waiter* are given to a small BERT, trained here in seconds, which says
who was treated, and whether kindly: it must know the second person, the verb, and whether it is negated. GraphMask
finds out which of its attention is needed: at which layer and head, from which token to which.

    python examples/transformer.py [DIR]           # about a minute; writes DIR/transformer.html
"""

# %% The data: sentences, who was treated, and whether kindly
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from graphmask import GraphMask, store
from graphmask.analysis import heads, kinds
from graphmask.integrations.transformers import tokens
from graphmask.report.build import write_page

PEOPLE = ["cook", "waiter", "guest", "driver", "neighbour"]
ADJECTIVES = ["old", "young", "quiet", "happy"]
GOOD, BAD = ["praised", "thanked", "liked"], ["blamed", "ignored", "mocked"]
NEGATIONS = ["hardly", "never"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
CLASSES = [f"{person}, {how}" for person in PEOPLE for how in ("unkindly", "kindly")]


def sentence(generator: torch.Generator) -> tuple[str, int]:
    def one_of(words: list[str]) -> str:
        return words[int(torch.randint(len(words), (), generator=generator))]

    def chance(p: float) -> bool:
        return bool(torch.rand((), generator=generator) < p)

    def somebody() -> list[str]:
        return ["the", *([one_of(ADJECTIVES)] if chance(0.5) else []), one_of(PEOPLE)]

    negated, good = chance(0.5), chance(0.5)
    words = [*somebody(), *([one_of(NEGATIONS)] if negated else []), one_of(GOOD if good else BAD), *somebody()]
    return " ".join(words), 2 * PEOPLE.index(words[-1]) + (good != negated)


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = [*SPECIAL, "the", *PEOPLE, *ADJECTIVES, *GOOD, *BAD, *NEGATIONS]
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **names)


def make_batches(tokenizer: PreTrainedTokenizerFast, count: int, seed: int, size: int = 32) -> list[Any]:
    """What a tokenizer returns, with the labels beside."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [sentence(generator) for _ in range(count)]
    found = []
    for start in range(0, count, size):
        texts, labels = zip(*drawn[start : start + size], strict=True)
        batch = tokenizer(list(texts), padding=True, return_tensors="pt")
        batch["labels"] = torch.tensor(labels)
        found.append(batch)
    return found


# %% The model: yours, from a hub or a folder; here a small one, trained in seconds
def train(vocabulary: int, batches: list[Any], seed: int) -> BertForSequenceClassification:
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        num_labels=len(CLASSES),
        initializer_range=0.1,  # a small model learns nothing from BERT's own, smaller one
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(10):
        for batch in batches:
            optimiser.zero_grad()
            model(**batch).loss.backward()
            optimiser.step()
    return model.eval()


def main(folder: Path, seed: int = 0, epochs: int | None = None) -> dict[str, float]:
    tokenizer = make_tokenizer()
    training, test = make_batches(tokenizer, 2048, seed), make_batches(tokenizer, 128, seed + 1)
    model = train(len(tokenizer), training, seed)
    with torch.no_grad():
        right = [(model(**batch).logits.argmax(1) == batch["labels"]).float() for batch in test]

    # %% Three lines: nothing about the model changes, inside or out
    explainer = GraphMask(model, tolerance=0.05, seed=seed)
    explainer.fit(training, epochs=epochs, progress=False)
    notes = tokens(tokenizer, classes=CLASSES)
    found = explainer.explain_all(test, out=folder / "explanations", metadata=notes, progress=False)

    # %% What it needs: by layer and head, and by where the attention goes
    by_head, by_kind = heads(found), kinds(found)
    print(by_head, by_kind, sep="\n")
    explanations = list(store.open(folder / "explanations"))
    print(explanations[0])
    page = write_page(folder / "transformer.html", explanations[:12], title="Which attention does the classifier need?")
    print(f"wrote {page}")
    kept, sent = by_kind["kept"].sum(), by_kind["edges"].sum()
    needed = {*GOOD, *BAD, *NEGATIONS, *PEOPLE}
    senders = [
        explanation.info["tokens"][sender]
        for explanation in explanations
        for sender in explanation.edge_index[0, explanation.kept.any(0)].tolist()
    ]
    return {
        "right": float(torch.cat(right).mean()),
        "kept": kept / sent,
        "faithful": sum(e.faithful and e.same_prediction for e in explanations) / len(explanations),
        "idle heads": int((by_head["kept"] == 0).sum()),
        "from people, verbs and negations": sum(word in needed for word in senders) / max(len(senders), 1),
    }


if __name__ == "__main__":
    print(main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/transformer")))
