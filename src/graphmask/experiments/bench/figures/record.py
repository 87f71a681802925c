"""The file of figures: one section per measurement, with its origin; a section is replaced as a whole.

A section has its figures in itself, or names a file beside the figures file that has them, with that file's hash: so
nobody can put other figures there and leave the origin as it was.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from graphmask.errors import GraphMaskError
from graphmask.experiments.bench.figures import origin
from graphmask.files import read_json, write_bytes

FORMAT = 1
#: Sections that are large, or that others read, have a file of their own.
FILES = {
    "battery": "battery.json",
    "leaderboard": "leaderboard.json",
    "srl": "studies/srl.json",
    "qa": "studies/qa.json",
}

Section = dict[str, Any]


def read(path: Path) -> dict[str, Section]:
    """All sections, with the figures of other files put in."""
    stored = read_json(path)
    if not isinstance(stored, dict) or stored.get("format") != FORMAT or not isinstance(stored.get("sections"), dict):
        raise GraphMaskError(f"Expected figures of format {FORMAT} at {path}, found something else.")
    return {name: _whole(section, path) for name, section in stored["sections"].items()}


def _whole(section: Section, path: Path) -> Section:
    if "file" not in section:
        return section
    return {**section, "figures": read_json(path.parent / section["file"])}


def replace(path: Path, name: str, about: dict[str, Any], source: Path) -> None:
    """Put what a command wrote to ``source`` into the file, in the place of what was measured before as ``name``."""
    figures, sections = read_json(source), read_json(path)["sections"] if path.exists() else {}
    if name in FILES:
        file = path.parent / FILES[name]
        if source.resolve() != file.resolve():
            write_bytes(file, source.read_bytes())
        sections[name] = {**about, "file": FILES[name], "sha256": digest(file)}
    else:
        sections[name] = {**about, "figures": figures}
    text = json.dumps({"format": FORMAT, "sections": dict(sorted(sections.items()))}, indent=1, ensure_ascii=False)
    write_bytes(path, f"{text}\n".encode())


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def complaints(path: Path, root: Path) -> list[str]:
    """What is wrong with the sections: a commit that nobody knows, a file that is not the recorded one."""
    wrong = []
    for name, section in read_json(path)["sections"].items():
        for key in ("command", "date"):
            if not section.get(key):
                wrong.append(f"{name}: the {key} is missing")
        if not origin.known(root, section.get("commit")):
            wrong.append(f"{name}: the commit {section.get('commit')!r} is unknown")
        if "file" in section and digest(path.parent / section["file"]) != section["sha256"]:
            wrong.append(f"{name}: {section['file']} is not the file that was recorded; see `graphmask bench record`")
    return wrong
