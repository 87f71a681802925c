"""Slow, literal versions of the paper's formulas: Python numbers (float64), loops over edges, no cleverness."""
