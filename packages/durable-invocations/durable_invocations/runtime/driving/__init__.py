"""Attempts: their streams, and the operations of the store that follow."""
