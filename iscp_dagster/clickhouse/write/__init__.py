"""Rows on their way into a table: chunks, tokens, placement, dead letters."""
