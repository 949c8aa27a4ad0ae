"""Upkeep of indexes between iterations: maintenance, dead letters, comparison."""
