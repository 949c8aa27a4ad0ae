"""Attempts: what is sent and received on a stream, and what the store is told of it."""
