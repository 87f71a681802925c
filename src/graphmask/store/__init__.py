"""Explanations of many graphs on disk: Parquet shards, each written whole or not at all, and read back lazily.

A store is a folder with ``store.json`` and shards, each of ``graphs-000000.parquet``, ``edges-000000.parquet`` and
``shard-000000.json``; it is made by ``explain_all(loader, out=DIR)``, in one process or in several at once.
``docs/store.md`` has the columns and examples.
"""

from graphmask.store.compacting import compact
from graphmask.store.reading import Store, open

__all__ = ["Store", "compact", "open"]
