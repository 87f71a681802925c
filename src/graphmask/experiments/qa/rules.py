"""Rules that answer without a model: what one has to beat before its explanations are worth reading."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from graphmask.experiments.qa.questions import SUBJECT, Question, Span

#: Gives each candidate a number; the highest is the answer.
Rule = Callable[[Question], Sequence[float]]


def random(question: Question) -> list[float]:
    return [0.0] * len(question.candidates)


def most_mentioned(question: Question) -> list[float]:
    counts = Counter(mention.entity for mention in question.mentions)
    return [counts[entity] for entity in range(len(question.candidates))]


def nearest(question: Question) -> list[float]:
    """By tokens between a mention of the candidate and one of the subject, documents laid end to end."""
    offset = [0]
    for document in question.documents:
        offset.append(offset[-1] + len(document))

    def at(span: Span) -> int:
        return offset[span.document] + span.start

    positions: dict[int, list[int]] = defaultdict(list)
    for mention in question.mentions:
        positions[mention.entity].append(at(mention.span))
    subject = positions[SUBJECT]
    return [
        -min((abs(a - b) for a in positions[entity] for b in subject), default=offset[-1] + 1)
        for entity in range(len(question.candidates))
    ]


def most_frequent(training: Sequence[Question]) -> Rule:
    """The candidate that most often was the answer to this relation in training."""
    seen: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for question in training:
        seen[question.relation][question.candidates[question.answer].lower()] += 1
    return lambda question: [seen[question.relation][name.lower()] for name in question.candidates]


def accuracy(rule: Rule, questions: Sequence[Question]) -> float:
    """Per cent. Candidates with the same number share the chance, as if one were drawn."""
    total = 0.0
    for question in questions:
        scores = rule(question)
        best = [entity for entity, score in enumerate(scores) if score == max(scores)]
        total += (question.answer in best) / len(best)
    return 100 * total / len(questions)


def accuracies(training: Sequence[Question], test: Sequence[Question]) -> dict[str, float]:
    rules: dict[str, Rule] = {
        "random candidate": random,
        "most mentioned": most_mentioned,
        "nearest to the subject": nearest,
        "most frequent in training": most_frequent(training),
    }
    return {name: accuracy(rule, test) for name, rule in rules.items()}
