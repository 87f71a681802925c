"""Trees joined with predicates: by hand, on the sample of the real sources, and on damaged sources."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from graphmask.cli import app
from graphmask.errors import GraphMaskError
from graphmask.experiments.srl import conll09, ewt
from graphmask.experiments.srl.conll09 import Predicate

from .support import damaged, located

# A multiword token, an empty node, and a span ("him look") that two tokens of the tree stand above.
UD = """\
# sent_id = 1
# text = They didn't make him look like a fool.
1	They	they	PRON	PRP	Case=Nom	4	nsubj	4:nsubj	_
2-3	didn't	_	_	_	_	_	_	_	_
2	did	do	AUX	VBD	_	4	aux	4:aux	_
3	n't	not	PART	RB	_	4	advmod	4:advmod	_
4	make	make	VERB	VB	_	0	root	0:root	_
5	him	he	PRON	PRP	_	4	obj	4:obj	_
6	look	look	VERB	VB	_	4	xcomp	4:xcomp	_
6.1	look	look	VERB	VB	_	_	_	4:dep	_
7	like	like	ADP	IN	_	9	case	9:case	_
8	a	a	DET	DT	_	9	det	9:det	_
9	fool	fool	NOUN	NN	_	6	obl:as	6:obl:as	SpaceAfter=No
10	.	.	PUNCT	.	_	4	punct	4:punct	_

# text = Yes
1	Yes	yes	INTJ	UH	_	0	root	0:root	_

"""
SKELETON = """\
a.xml 0 0 [WORD] PRP (S* - - * (ARG0*) *
a.xml 0 1 [WORD] VBD * do do.01 (V*) * *
a.xml 0 2 [WORD] RB * - - * (ARGM-NEG*) *
a.xml 0 3 [WORD] VB * make make.02 * (V*) *
a.xml 0 4 [WORD] PRP * - - * (ARG1* (C-ARG0*)
a.xml 0 5 [WORD] VB * look look.02 * * (V*)
a.xml 0 6 [WORD] IN * - - * * (ARGM-MNR*
a.xml 0 7 [WORD] DT * - - * * *
a.xml 0 8 [WORD] NN * - - * *) *)
a.xml 0 9 [WORD] . *) - - * * *

a.xml 1 0 [WORD] UH (S*) - -

"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "ud" / "blog").mkdir(parents=True)
    (tmp_path / "propbank" / "blog" / "00").mkdir(parents=True)
    (tmp_path / "files.dev").write_text("blog/a.xml.conllu\n")
    (tmp_path / "ud" / "blog" / "a.xml.conllu").write_text(UD)
    (tmp_path / "propbank" / "blog" / "00" / "a.xml.gold_skel").write_text(SKELETON)
    return tmp_path


def _build(sources: Path) -> ewt.Built:
    return ewt.build(sources / "ud", sources / "propbank", sources / "out")["dev"]


def test_joined_by_hand(sources: Path) -> None:
    built = _build(sources)
    assert built == ewt.Built(sources / "out" / "dev.conll09", 2, 3, 5, ())
    first, second = conll09.read(built.path)
    assert first.form == ("They", "did", "n't", "make", "him", "look", "like", "a", "fool", ".")
    assert first.pos == first.ppos == ("PRP", "VBD", "RB", "VB", "PRP", "VB", "IN", "DT", "NN", ".")
    assert first.head == first.phead == (4, 4, 4, 0, 4, 4, 9, 9, 6, 4)
    assert first.deprel[8] == first.pdeprel[8] == "obl:as"
    assert set(first.feat) == set(first.pfeat) == {"_"}
    assert first.predicates == (
        Predicate(1, "do.01", ()),
        Predicate(3, "make.02", ((0, "A0"), (2, "AM-NEG"), (5, "A1"))),
        Predicate(5, "look.02", ((4, "C-A0"), (8, "AM-MNR"))),
    )
    assert (second.form, second.predicates) == (("Yes",), ())


def test_heads_of_spans() -> None:
    heads = (2, 0, 2, 3, 2)
    assert ewt.span_head(heads, 0, 4) == 1
    assert ewt.span_head(heads, 0, 0) == 0
    assert ewt.span_head(heads, 2, 3) == 2
    assert ewt.span_head(heads, 2, 4) == 2  # two tops; token 2 has one below it
    assert ewt.span_head((3, 3, 0), 0, 1) == 0  # two tops of one token each: the first


def test_two_spans_with_one_head_leave_the_first(sources: Path) -> None:
    path = sources / "propbank" / "blog" / "00" / "a.xml.gold_skel"
    path.write_text(
        SKELETON.replace("IN * - - * * (ARGM-MNR*\n", "IN * - - * * (ARGM-MNR(ARG2*\n").replace("*) *)", "*) *))")
    )
    built = _build(sources)
    assert conll09.read(built.path)[0].predicates[2].arguments == ((4, "C-A0"), (8, "AM-MNR"))


def test_sentences_cut_differently_are_left_out_and_reported(sources: Path) -> None:
    tree = sources / "ud" / "blog" / "a.xml.conllu"
    extra = "1\tOh\toh\tINTJ\tUH\t_\t0\troot\t_\t_\n2\tno\tno\tINTJ\tUH\t_\t1\tdep\t_\t_\n\n"
    tree.write_text(extra + UD)
    built = _build(sources)
    assert built.sentences == 2
    assert built.skipped == (f"{tree}: sentence 1 (2 tokens) is not cut like PropBank's",)
    tree.write_text(UD.replace("1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t0:root\t_\n", extra.strip() + "\n"))
    built = _build(sources)
    assert built.sentences == 1
    assert built.skipped == (f"{tree}: sentence 2 (2 tokens) is not cut like PropBank's",)


def test_documents_without_skeleton_are_reported(sources: Path) -> None:
    (sources / "files.dev").write_text("blog/a.xml.conllu\n\nblog/b.xml.conllu\n")
    (sources / "ud" / "blog" / "b.xml.conllu").write_text(UD)
    assert _build(sources).skipped == (
        f"{sources / 'ud' / 'blog' / 'b.xml.conllu'}: no skeleton below {sources / 'propbank'}",
    )
    (sources / "files.dev").write_text("blog/b.xml.conllu\n")
    with pytest.raises(GraphMaskError, match=r"found no sentence that is in both\. .*b\.xml\.conllu: no skeleton"):
        _build(sources)


@pytest.mark.parametrize(
    ("name", "old", "new", "line", "message"),
    [
        ("ud", "root\t0:root\t_\n5", "root\t0:root\n5", 7, "the 10 columns of CoNLL-U, found 9"),
        ("ud", "6\tlook", "7\tlook", 9, "the ID 6, found '7'"),
        ("ud", "_\t6\tobl", "_\t99\tobl", 13, "in HEAD a whole number from 0 to 10, found '99'"),
        ("ud", "_\t6\tobl", "_\t8\tobl", 13, "a tree in HEAD, found the cycle 9 -> 8 -> 9"),
        ("ud", "_\t0\troot\t0:root\t_\n\n", "_\t_\troot\t0:root\t_\n\n", 17, "a tree, found '_' for every head"),
        ("propbank", "(ARGM-MNR*", "(ARGM-MNR", 7, "a span such as (ARG0*, *, *) or (ARG0*), found '(ARGM-MNR'"),
        ("propbank", "(ARGM-MNR*", "*", 9, "a bracket that was opened before, found '*)'"),
        ("propbank", "(C-ARG0*)", "(C-ARG0*", 5, "a bracket that is closed, found (C-ARG0"),
        ("propbank", "0 3 [WORD]", "0 4 [WORD]", 4, "the token 3, found '4'"),
        ("propbank", "(ARGM-NEG*) *", "(ARGM-NEG*)", 3, "11 columns as in the sentence's first line, found 10"),
        ("propbank", "make.02", "-", 1, "one column of spans for each of the 2 senses, found 3"),
        ("list", "blog/a", "blog/c", 1, "a document below {ud}, found no blog/c.xml.conllu"),
    ],
)
def test_errors_by_hand(sources: Path, name: str, old: str, new: str, line: int, message: str) -> None:
    path = {
        "ud": sources / "ud" / "blog" / "a.xml.conllu",
        "propbank": sources / "propbank" / "blog" / "00" / "a.xml.gold_skel",
        "list": sources / "files.dev",
    }[name]
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    message = message.replace("{ud}", str(sources / "ud"))
    with pytest.raises(GraphMaskError, match=re.escape(f"{path}:{line}: expected {message}. ")):
        _build(sources)


def test_wrong_folders(sources: Path) -> None:
    ud, propbank, out = sources / "ud", sources / "propbank", sources / "out"
    with pytest.raises(GraphMaskError, match=r"Expected a folder at .*nowhere"):
        ewt.build(sources / "nowhere", propbank, out)
    with pytest.raises(GraphMaskError, match=r"Expected \.gold_skel files below"):
        ewt.build(ud, ud, out)
    with pytest.raises(GraphMaskError, match="Expected lists of documents"):
        ewt.build(ud, propbank, out, lists=propbank)
    (sources / "propbank" / "blog" / "a.xml.gold_skel").write_text(SKELETON)
    with pytest.raises(GraphMaskError, match=r"files\.dev:1: expected one skeleton of blog/a\.xml\.conllu, found"):
        ewt.build(ud, propbank, out)


@pytest.mark.parametrize("name", ["ud", "propbank"])
def test_damage(sources: Path, name: str) -> None:
    path = next(path for path in (sources / name).rglob("a.*"))
    text, rng = path.read_bytes(), random.Random(1)
    reader = ewt.read_trees if name == "ud" else ewt.read_skeletons
    outcomes = {"read": 0, "refused": 0}
    for _ in range(300):
        path.write_bytes(damaged(text, rng))
        try:
            list(reader(path))
            outcomes["read"] += 1
        except GraphMaskError as error:
            located(error, path)
            outcomes["refused"] += 1
    assert min(outcomes.values()) >= 10, outcomes


def test_the_sample_gives_the_head_of_the_real_file(real: Callable[[str], Path], tmp_path: Path) -> None:
    sample, whole = real("srl-ewt/sources-sample"), real("srl-ewt/dev.conll09").read_bytes()
    command = ["data", "build-ewt", "--ud", str(sample / "ud"), "--propbank", str(sample / "propbank")]
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    made = (tmp_path / "dev.conll09").read_bytes()
    assert made.count(b"\n\n") == 164
    assert whole.startswith(made)
