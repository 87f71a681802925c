"""Programs in processes of their own, which do not each wait for PyTorch to be imported.

One process imports torch and torch_geometric, and nothing of ours; each program runs in a fork of it, as
``python -c`` would run it. What a program imports of ours, or of other packages, it imports itself.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

#: Reads a line of JSON per program; answers with the number of its process, and with its exit code when it has ended.
SERVER = """
import json, os, sys
import torch, torch_geometric
for line in sys.stdin:
    job = json.loads(line)
    files = [os.open(job[name], os.O_WRONLY | os.O_CREAT) for name in ("out", "err")]
    child = os.fork()
    if not child:
        break
    for file in files:
        os.close(file)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
for number, file in enumerate(files, start=1):
    os.dup2(file, number)
    os.close(file)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.chdir(job["folder"])
sys.path[0] = job["folder"]
os.environ.clear()
os.environ.update(job["environment"])
sys.argv = ["-c", *job["arguments"]]
exec(compile(job["code"], "<string>", "exec"), {"__name__": "__main__"})
"""


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Running:
    """A program that has been started: its process, and what it prints."""

    def __init__(self, server: subprocess.Popen[str], out: IO[str], err: Path) -> None:
        self.server, self.stdout, self.err = server, out, err
        self.pid = int(self._told())
        self.code: int | None = None

    def _told(self) -> str:
        assert self.server.stdout is not None
        return self.server.stdout.readline()

    def wait(self) -> int:
        if self.code is None:
            self.code = int(self._told())
        return self.code

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)


@cache
def _server() -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    atexit.register(server.kill)
    return server


@contextmanager
def running(
    code: str, *arguments: str, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """Starts the program; it is over afterwards, whatever happens inside."""
    server = _server()
    with tempfile.TemporaryDirectory() as top:
        out, err = Path(top) / "out", Path(top) / "err"
        os.mkfifo(out)
        job = {"code": code, "arguments": arguments, "out": str(out), "err": str(err)}
        about: dict[str, Any] = {
            "folder": str(folder or Path.cwd()),
            "environment": {**os.environ, **(environment or {})},
        }
        assert server.stdin is not None
        server.stdin.write(json.dumps(job | about) + "\n")
        server.stdin.flush()
        with out.open() as printed:  # waits for the server to open the other end
            program = Running(server, printed, err)
            try:
                yield program
            finally:
                if program.code is None:
                    with suppress(ProcessLookupError):
                        program.kill(signal.SIGKILL)
                    program.wait()


def run(code: str, *arguments: str, folder: Path | None = None, environment: Mapping[str, str] | None = None) -> Done:
    """Runs the program to its end."""
    with running(code, *arguments, folder=folder, environment=environment) as program:
        told = program.stdout.read()
        return Done(program.wait(), told, program.err.read_text())
