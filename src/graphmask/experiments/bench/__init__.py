"""Measurements behind `graphmask bench`."""
