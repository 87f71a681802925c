"""Graphs: what a batch is, which edges it has, where messages flow, parts of large graphs."""
