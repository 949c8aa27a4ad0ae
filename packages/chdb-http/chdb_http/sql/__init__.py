"""Parses statements, as far as the server needs."""
