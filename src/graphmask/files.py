"""Files: safetensors with a JSON description in its header, written whole or not at all, never unpickled."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from graphmask.errors import CannotWrite, GraphMaskError

VERSION = 1
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
#: Beyond all that we write; a file that is longer is not read into memory.
JSON_BYTES_AT_MOST = 1 << 28
#: Lists in lists; what reads them calls itself once or twice for each, and Python has an end to that.
JSON_DEPTH_AT_MOST = 100


def write(path: str | Path, kind: str, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write to a temporary name beside ``path``, then rename: a reader sees the old file or the new one."""
    import safetensors.torch

    header = {"graphmask": kind, "version": str(VERSION), "description": json.dumps(description)}
    # Cloned, because safetensors refuses tensors that share memory: edge_index and edge_type may be views of one.
    whole = {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}
    header["hash"] = _hash(whole, header["description"])
    content = safetensors.torch.save(whole, metadata=header)
    write_bytes(path, content)


_FULL = {errno.ENOSPC: "there is no room left on the disk", errno.EDQUOT: "your share of the disk is used up"}
_CLOSED = {errno.EROFS: "it can only be read", errno.EACCES: "you may not write there", errno.EPERM: "it is closed"}


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """A context in which errors of writing become a `CannotWrite` that names the file and says what to do."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        advice = "Make room, then start the same run again." if error.errno in _FULL else "Choose another folder."
        why = (_FULL | _CLOSED).get(error.errno or 0) or error.strerror or str(error)
        raise CannotWrite(f"Expected to write {path}, found that this cannot be done: {why}. {advice}") from error


def write_bytes(path: str | Path, content: Any, tag: str = "") -> None:
    """Bytes, or what has a buffer of them; ``tag`` is in the temporary name."""
    with writing(path):
        _write_bytes(Path(path), content, tag)


def _write_bytes(path: Path, content: Any, tag: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.{tag}")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_names(path.parent)


def _sync_names(folder: Path) -> None:
    """Flush folder entries: after a power cut no file is there without the files that were written before it."""
    with suppress(OSError):  # not every system opens folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def as_json(value: Any) -> Any:
    """The value as it would come back from a file."""
    return json.loads(json.dumps(value))


def read_json(path: Path) -> Any:
    """The content of a JSON file, which may have been written by somebody else."""
    try:
        with open(path, "rb") as file:
            content = file.read(JSON_BYTES_AT_MOST + 1)
    except OSError as error:
        raise GraphMaskError(f"Expected JSON at {path}, found nothing to read ({error.strerror}).") from None
    if len(content) > JSON_BYTES_AT_MOST:
        raise GraphMaskError(f"Expected at most {JSON_BYTES_AT_MOST} bytes of JSON at {path}, found more.")
    return parse_json(content, path)


def parse_json(content: str | bytes, path: Path) -> Any:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise GraphMaskError(f"Expected JSON at {path}, found a truncated or foreign file.") from None
    if _too_deep(content if isinstance(content, bytes) else content.encode(errors="replace"), value):
        raise GraphMaskError(f"Expected at most {JSON_DEPTH_AT_MOST} lists in lists in the JSON at {path}, found more.")
    return value


def _too_deep(content: bytes, value: Any) -> bool:
    """Whether lists and objects are nested more than this deep."""
    # Quick, and right unless there are brackets in texts.
    steps = numpy.frombuffer(content.translate(None, _NO_BRACKETS), numpy.uint8)
    opens = (steps == ord("[")) | (steps == ord("{"))
    if not len(steps) or numpy.where(opens, 1, -1).cumsum().max() <= JSON_DEPTH_AT_MOST:
        return False
    level = [value]
    for _ in range(JSON_DEPTH_AT_MOST):
        containers = [one for one in level if isinstance(one, dict | list)]
        level = [inner for one in containers for inner in (one.values() if isinstance(one, dict) else one)]
    return any(isinstance(one, dict | list) for one in level)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def read(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the description, or a `GraphMaskError` that says what is wrong with the file."""
    import safetensors

    path = Path(path)
    if not path.is_file():
        raise GraphMaskError(f"Expected a GraphMask {kind} at {path}, found no such file.")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            _check_header(header, path, kind)  # before anything else is read
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (safetensors.SafetensorError, OSError, AttributeError) as error:
        # AttributeError: a type of numbers that this version of PyTorch does not have.
        raise GraphMaskError(
            f"Expected a GraphMask {kind} at {path}, found a truncated or foreign file ({error}). Make it anew."
        ) from None
    text = header.get("description", "")
    if header.get("hash") != _hash(tensors, text):
        raise GraphMaskError(
            f"Expected the GraphMask {kind} at {path} as it was written, found it altered: its hash is another. Fetch "
            "it again, or make it anew."
        )
    try:
        description = parse_json(text, path)
    except GraphMaskError:
        raise GraphMaskError(f"Expected a description in the header of {path}, found none that can be read.") from None
    return tensors, description


def _check_header(header: dict[str, str], path: Path, kind: str) -> None:
    if header.get("graphmask") != kind:
        actual = header.get("graphmask")
        what = f"a GraphMask {actual}" if actual else "a safetensors file of another program"
        raise GraphMaskError(f"Expected a GraphMask {kind} at {path}, found {what}.")
    if header.get("version") != str(VERSION):
        raise GraphMaskError(
            f"Expected version {VERSION} of the file format at {path}, found {header.get('version')!r}. "
            "Install the version of graphmask that wrote it."
        )


def _hash(tensors: dict[str, Tensor], description: str) -> str:
    digest = hashlib.blake2b(description.encode(), digest_size=16)
    for name, value in sorted(tensors.items()):
        digest.update(f"\0{name} {value.dtype} {tuple(value.shape)} ".encode())
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def understood(path: str | Path, kind: str) -> Iterator[None]:
    """A context for using what was read: anything missing or of a wrong type becomes an error about the file."""
    try:
        yield
    except GraphMaskError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise GraphMaskError(
            f"Expected a GraphMask {kind} at {path}, found contents that do not fit ({error!r}). Make it anew."
        ) from error


def fingerprint(model: nn.Module) -> str:
    """The same for two models exactly when their parameters and buffers are the same, by name and value."""
    import safetensors.torch

    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(safetensors.torch.save({"": value.detach().cpu().contiguous()}))
    return digest.hexdigest()
