"""Checks on files from elsewhere: no links, no pipes, and nothing is decoded that a store would not contain."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmask.errors import GraphMaskError

if TYPE_CHECKING:
    import pyarrow as pa

#: Of the store's schema. Shards of version 1 have no piece of a manifest: what it says is in their footers.
VERSION, FIRST_VERSION = 2, 1
#: A group of rows is decoded as a whole: more than this is refused.
ROWS_AT_MOST, BYTES_AT_MOST = 1 << 16, 1 << 31


def regular(path: Path) -> int:
    """The size of a regular file; a link, which may lead anywhere, or a pipe, which may never end, is refused."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        raise GraphMaskError(
            f"Expected all files of a store in {path.parent}, found no {path.name}. Make the store anew."
        ) from None
    if not stat.S_ISREG(status.st_mode):
        raise GraphMaskError(
            f"Expected a plain file of a store at {path}, found a link or a special file. Copy the store with what its "
            "links lead to, if you trust it."
        )
    return status.st_size


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Inside this context, errors of the Parquet reader become a `GraphMaskError` that names the file."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, KeyError) as error:
        raise GraphMaskError(
            f"Expected a shard of a store at {path}, found a truncated or foreign file ({error}). Make the store anew."
        ) from None


def check_hash(path: Path, expected: str) -> None:
    with readable(path), open(path, "rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    if digest != expected:
        raise GraphMaskError(
            f"Expected the shard of a store at {path} as it was written, found it altered: its hash is another. "
            "Fetch it again, or delete it with its shard-*.json and run explain_all again."
        )


def check_version(version: Any, path: Path) -> None:
    if str(version) not in (str(FIRST_VERSION), str(VERSION)):
        raise GraphMaskError(
            f"Expected version {FIRST_VERSION} or {VERSION} of the store's schema at {path}, found {version!r}. "
            "Install the version of graphmask that wrote it."
        )


def check_kind(header: dict[bytes, bytes] | None, path: Path, kind: str) -> None:
    header = header or {}
    if header.get(b"graphmask_table") != kind.encode():
        raise GraphMaskError(f"Expected a shard of a store at {path}, found a Parquet file of another kind.")
    check_version(header.get(b"graphmask_schema_version", b"").decode(errors="replace"), path)


def check_footer(path: Path, kind: str, rows: int, schema: pa.Schema) -> None:
    """Raise, before anything is decoded, unless the footer agrees with the manifest and row groups are small enough."""
    import pyarrow.parquet as pq

    with readable(path), pq.ParquetFile(path) as file:
        footer, columns = file.metadata, file.schema_arrow
        check_kind(footer.metadata, path, kind)
        if footer.num_rows != rows or not columns.equals(schema.remove_metadata(), check_metadata=False):
            raise GraphMaskError(
                f"Expected {rows} rows of the store's columns at {path}, found {footer.num_rows} rows of "
                f"{', '.join(columns.names)}. Make the store anew."
            )
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            values = max(group.column(column).num_values for column in range(group.num_columns))
            if (
                not 0 <= group.num_rows <= ROWS_AT_MOST
                or not 0 <= group.total_byte_size <= BYTES_AT_MOST
                or not 0 <= values <= BYTES_AT_MOST // 8
            ):
                raise GraphMaskError(
                    f"Expected groups of at most {ROWS_AT_MOST} rows and {BYTES_AT_MOST} bytes at {path}, found one of "
                    f"{group.num_rows} and {group.total_byte_size}. It was not written by graphmask."
                )
