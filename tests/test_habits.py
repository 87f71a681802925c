"""What is written in several files about the project says the same in all of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
CI = (ROOT / ".github/workflows/ci.yml").read_text()


def test_slow_tests_exist() -> None:
    slow = re.findall(r'^    "([\w/]+\.py(?:::\w+)?)",$', (ROOT / "tests/conftest.py").read_text(), re.M)
    assert len(slow) > 30
    for entry in slow:
        file, _, name = entry.partition("::")
        path = ROOT / "tests" / file
        assert path.is_file(), entry
        assert not name or f"def {name}(" in path.read_text(), entry


def test_one_version() -> None:
    cited = (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^version: {re.escape(PROJECT['version'])}$", cited, re.M)
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_commit_is_formatted_by_the_version_that_make_lint_uses() -> None:
    versions = set(re.findall(r"ruff==([\d.]+)", (ROOT / ".pre-commit-config.yaml").read_text()))
    assert versions == {CONSTRAINTS["ruff"]}


def test_ci_runs_the_oldest_and_newest_versions_that_are_allowed() -> None:
    pythons = sorted(
        re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.M), key=lambda v: int(v[2:])
    )
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    tested = re.findall(r'\{python: "([\d.]+)", torch: "([^"]+)", name: (\w+)\}', CI)
    assert [(python, name) for python, _, name in tested] == [(pythons[0], "oldest"), (pythons[-1], "newest")]
    needed = dict(re.findall(r"(torch(?:_geometric)?)>=([\d.]+)", "\n".join(PROJECT["dependencies"])))
    for package, version in needed.items():
        assert f"{package}=={version}.*" in tested[0][1]


def test_what_contributing_names_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^ {4}make ([\w-]+)", text, re.M)
    assert {"check", "test", "coverage", "docs"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.M), target
    named = re.findall(r"`((?:tests|docs|src|examples)/[\w/.]+)`", text)
    named += [
        f"src/graphmask/{path}" for path in re.findall(r"`((?:methods|experiments|tapping|cli|ops)/[\w/]+\.py)`", text)
    ]
    assert len(named) > 8
    for path in named:
        assert (ROOT / path).exists(), path
