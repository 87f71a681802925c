"""CoNLL-2009: what is read, what is written, and that neither loses anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmask.errors import GraphMaskError
from graphmask.experiments.srl import conll09
from graphmask.experiments.srl.conll09 import Predicate, Sentence


def test_every_column_by_hand(two: Path) -> None:
    cat, odd = conll09.read(two)
    assert cat == Sentence(
        form=("The", "cat", "that", "she", "saw", "slept", "."),
        lemma=("the", "cat", "that", "she", "see", "sleep", "."),
        plemma=("the", "cat", "that", "she", "saw", "sleep", "."),
        pos=("DT", "NN", "WDT", "PRP", "VBD", "VBD", "."),
        ppos=("DT", "NN", "IN", "PRP", "NN", "VBD", "."),
        feat=("_", "num=sg", "_", "_", "_", "_", "_"),
        pfeat=("_",) * 7,
        head=(2, 6, 5, 5, 2, 0, 6),
        phead=(2, 6, 5, 5, 6, 0, 0),
        deprel=("det", "nsubj", "obj", "nsubj", "acl", "root", "punct"),
        pdeprel=("det", "nsubj", "mark", "nsubj", "dep", "root", "root"),
        predicates=(
            Predicate(4, "see.01", ((1, "A1"), (2, "R-A1"), (3, "A0"))),
            Predicate(5, "sleep.01", ((1, "A0"),)),
        ),
    )
    assert cat.fillpred == ("_", "_", "_", "_", "Y", "Y", "_")
    assert cat.pred == ("_", "_", "_", "_", "see.01", "sleep.01", "_")
    assert odd.form == ("no\x85\u2028way", "a b")
    assert odd.predicates == ()
    assert (len(cat), len(odd)) == (7, 2)


def test_gold_or_predicted(two: Path) -> None:
    cat = conll09.read(two)[0]
    assert cat.lemmas(predicted=False)[4] == "see"
    assert cat.lemmas(predicted=True)[4] == "saw"
    assert cat.tags(predicted=False)[2] == "WDT"
    assert cat.tags(predicted=True)[2] == "IN"
    assert cat.features(predicted=False)[1] == "num=sg"
    assert cat.features(predicted=True)[1] == "_"
    assert cat.tree(predicted=False) == ((2, 6, 5, 5, 2, 0, 6), cat.deprel)
    assert cat.tree(predicted=True) == ((2, 6, 5, 5, 6, 0, 0), cat.pdeprel)


def test_written_as_it_was_read(two: Path, tmp_path: Path) -> None:
    conll09.write(tmp_path / "again.conll09", conll09.read(two))
    assert (tmp_path / "again.conll09").read_bytes() == two.read_bytes()


def test_ends_of_lines_and_of_files(two: Path) -> None:
    expected, text = conll09.read(two), two.read_bytes()
    for other in (
        text.replace(b"\n", b"\r\n"),
        text.removesuffix(b"\n"),
        text.removesuffix(b"\n\n"),
        b"\n\n" + text.replace(b"\n\n", b"\n\n\n") + b"\n",
    ):
        two.write_bytes(other)
        assert conll09.read(two) == expected


def test_limit_reads_no_further(two: Path) -> None:
    whole = conll09.read(two)
    two.write_bytes(two.read_bytes() + b"broken\n")
    assert conll09.read(two, limit=2) == whole
    assert conll09.read(two, limit=0) == []
    assert next(conll09.iterate(two)) == whole[0]
    with pytest.raises(GraphMaskError, match=r"two\.conll09:12: expected at least 14 columns, found 1\."):
        conll09.read(two)


BLIND = "1\tGo\t_\tgo\t_\tVB\t_\t_\t_\t0\t_\troot\tY\t_\n2\thome\t_\thome\t_\tNN\t_\t_\t_\t1\t_\tobj\t_\t_\n\n"


def test_blind_files_only_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "blind.conll09"
    path.write_text(BLIND)
    with pytest.raises(GraphMaskError, match=r"blind\.conll09:1: expected a sense in PRED .* blind=True"):
        conll09.read(path)
    (sentence,) = conll09.read(path, blind=True)
    assert sentence.blind
    assert sentence.predicates == (Predicate(0, "_", ()),)
    assert sentence.head == ()
    assert sentence.tree(predicted=True).heads == (0, 1)
    with pytest.raises(GraphMaskError, match="Use the tree in PHEAD"):
        sentence.tree(predicted=False)
    conll09.write(tmp_path / "again.conll09", [sentence])
    assert (tmp_path / "again.conll09").read_text() == BLIND
    path.write_text(BLIND.replace("\t_\n", "\t_\tA1\n"))
    with pytest.raises(GraphMaskError, match=r":1: expected a sense in PRED"):
        conll09.read(path, blind=True)


def test_a_long_chain_is_checked_in_linear_time(tmp_path: Path) -> None:
    size = 40_000
    chain = Sentence(*[("x",) * size] * 7, (*range(2, size + 1), 0), (*range(2, size + 1), 0), *[("x",) * size] * 2, ())
    started = time.process_time()
    conll09.write(tmp_path / "chain.conll09", [chain])
    assert time.process_time() - started < 10  # a square of 40,000 would take minutes
    with pytest.raises(GraphMaskError, match=r"cycle 1 -> 2 -> .* -> \.\.\. -> 1\."):
        conll09.write(tmp_path / "ring.conll09", [replace(chain, phead=(*range(2, size + 1), 1))])


def test_what_could_not_be_read_back_is_not_written(two: Path, tmp_path: Path) -> None:
    cat = conll09.read(two)[0]
    see = cat.predicates[0]
    out = tmp_path / "out.conll09"
    for wrong in (
        replace(cat, form=("The\n", *cat.form[1:])),
        replace(cat, form=("The\tdog", *cat.form[1:])),
        replace(cat, form=("", *cat.form[1:])),
        replace(cat, form=("\ud800", *cat.form[1:])),
        replace(cat, lemma=cat.lemma[:-1]),
        replace(cat, head=(9, *cat.head[1:])),
        replace(cat, head=(-1, *cat.head[1:])),
        replace(cat, phead=cat.phead[:-1]),
        replace(cat, predicates=(*cat.predicates[::-1],)),
        replace(cat, predicates=(replace(see, index=7),)),
        replace(cat, predicates=(replace(see, arguments=((7, "A0"),)),)),
        replace(cat, predicates=(replace(see, arguments=((1, "A0"), (1, "A1"))),)),
        replace(cat, predicates=(replace(see, arguments=((1, "_"),)),)),
        replace(cat, predicates=(replace(see, arguments=((6, "A0\r"),)),)),
        replace(cat, predicates=(replace(see, sense="_"),)),
        Sentence((), (), (), (), (), (), (), (), (), (), (), ()),
    ):
        with pytest.raises(GraphMaskError, match=r"out\.conll09:\d+: expected "):
            conll09.write(out, [cat, wrong])
        assert not out.exists()
    with pytest.raises(GraphMaskError, match="Expected sentences"):
        conll09.write(out, [])


# Any text that does not end a line or a column; a carriage return counts as text inside a line.
texts = st.text(st.characters(exclude_characters="\t\n", exclude_categories=["Cs"]), min_size=1, max_size=4)
labels = texts.filter(lambda text: text != "_" and "\r" not in text)


@st.composite
def trees(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """Any forest: each token hangs from 0 or from one that was placed before it."""
    heads = [0] * size
    placed = [0]
    for token in draw(st.permutations(range(1, size + 1))):
        heads[token - 1] = draw(st.sampled_from(placed))
        placed.append(token)
    return tuple(heads)


@st.composite
def sentences(draw: st.DrawFn) -> Sentence:
    size = draw(st.integers(1, 6))
    column = st.tuples(*[texts] * size)
    places = st.sets(st.integers(0, size - 1)).map(sorted)
    blind = draw(st.booleans())
    if blind:
        predicates = [Predicate(place, "_", ()) for place in draw(places)]
    else:
        predicates = [
            Predicate(place, draw(labels), tuple((token, draw(labels)) for token in draw(places)))
            for place in draw(places)
        ]
    absent = st.just(())
    return Sentence(
        *(draw(column) for _ in range(7)),
        head=draw(st.one_of(trees(size), absent)),
        phead=draw(st.one_of(trees(size), absent)),
        deprel=draw(column),
        pdeprel=draw(column),
        predicates=tuple(predicates),
    )


@settings(max_examples=50)
@given(st.lists(sentences(), min_size=1, max_size=4))
def test_written_then_read_is_the_same(written: list[Sentence]) -> None:
    with TemporaryDirectory() as folder:
        first, second = Path(folder) / "1.conll09", Path(folder) / "2.conll09"
        conll09.write(first, written)
        read = conll09.read(first, blind=True)
        assert read == written
        conll09.write(second, read)
        assert second.read_bytes() == first.read_bytes()
        first.write_bytes(first.read_bytes().replace(b"\n", b"\r\n"))
        assert conll09.read(first, blind=True) == written


@pytest.mark.parametrize(
    ("split", "size", "predicates", "arguments"),
    [("train", 12_526, 40_429, 81_261), ("dev", 1_968, 4_963, 9_563), ("test", 2_058, 4_795, 9_321)],
)
def test_real_files(
    real: Callable[[str], Path], tmp_path: Path, split: str, size: int, predicates: int, arguments: int
) -> None:
    path = real(f"srl-ewt/{split}.conll09")
    started = time.process_time()
    read = conll09.read(path)
    assert time.process_time() - started < 10
    assert len(read) == size
    assert sum(len(sentence.predicates) for sentence in read) == predicates
    roles = [role for sentence in read for predicate in sentence.predicates for _, role in predicate.arguments]
    assert len([role for role in roles if role != "C-V"]) == arguments  # C-V is the rest of the predicate itself
    few = read[-2_000:]
    conll09.write(tmp_path / "again.conll09", few)
    assert path.read_bytes().endswith((tmp_path / "again.conll09").read_bytes())
