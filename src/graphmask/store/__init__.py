"""Explanations of many graphs on disk: Parquet shards, each written whole or not at all, and read back lazily.

A store is a folder with ``store.json`` and pairs of ``graphs-000000.parquet`` and ``edges-000000.parquet``; it is made
by ``explain_all(loader, out=DIR)``. ``docs/store.md`` has the columns and examples.
"""

from graphmask.store.reading import Store, open

__all__ = ["Store", "open"]
