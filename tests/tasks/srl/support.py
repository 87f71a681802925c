"""Hand-written sentences, and small damage to files."""

from __future__ import annotations

import random
import re
from pathlib import Path

# "The cat that she saw slept ." with gold and predicted columns that differ; two predicates.
CAT = """\
1	The	the	the	DT	DT	_	_	2	2	det	det	_	_	_	_
2	cat	cat	cat	NN	NN	num=sg	_	6	6	nsubj	nsubj	_	_	A1	A0
3	that	that	that	WDT	IN	_	_	5	5	obj	mark	_	_	R-A1	_
4	she	she	she	PRP	PRP	_	_	5	5	nsubj	nsubj	_	_	A0	_
5	saw	see	saw	VBD	NN	_	_	2	6	acl	dep	Y	see.01	_	_
6	slept	sleep	sleep	VBD	VBD	_	_	0	0	root	root	Y	sleep.01	_	_
7	.	.	.	.	.	_	_	6	0	punct	root	_	_	_	_
"""
# No predicate; a form with a next-line character, which does not end a line, and one with a space.
ODD = (
    "1\tno\x85\u2028way\tno\tno\tUH\tUH\t_\t_\t0\t0\troot\troot\t_\t_\n"
    "2\ta b\tab\tab\tXX\tXX\t_\t_\t1\t1\tdep\tdep\t_\t_\n"
)
TWO = f"{CAT}\n{ODD}\n"


def damaged(text: bytes, rng: random.Random) -> bytes:
    """The text after one to four accidents to its bytes or lines."""
    for _ in range(rng.randint(1, 4)):
        lines = text.split(b"\n")
        line, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        cells = re.split(rb"([\t ]+)", lines[line])
        cell = rng.randrange(len(cells))
        match rng.randrange(9):
            case 0:
                place = rng.randrange(len(text) or 1)
                text = text[:place] + bytes([rng.randrange(256)]) + text[place + 1 :]
                continue
            case 1:
                text = text[: rng.randrange(len(text) + 1)]
                continue
            case 2:
                del lines[line]
            case 3:
                lines.insert(other, lines[line])
            case 4:
                lines[line], lines[other] = lines[other], lines[line]
            case 5:
                lines[line] = b"".join(cells[:cell] + cells[cell + 1 :])
            case 6:
                cells[cell] = rng.choice(
                    [b"", b"_", b"0", b"1", b"-1", b"99", b"Y", b"\t", b"\r", b"\x85", b"x\xff", b"(A*"]
                )
                lines[line] = b"".join(cells)
            case 7:
                lines[line] += rng.choice([b"\t", b"\t_", b"\r", b" *", b"\xe2\x80\xa8", b"\0"])
            case 8:
                lines[line] = b""
        text = b"\n".join(lines)
    return text


def located(error: BaseException, path: Path) -> int:
    """The line that an error names, which must exist, in the one form that all errors have."""
    match = re.match(rf"{re.escape(str(path))}:(\d+): expected .+, found .+\. ", str(error), re.DOTALL)
    assert match, str(error)
    line = int(match[1])
    assert 1 <= line <= max(1, path.read_bytes().count(b"\n") + 1)
    return line
