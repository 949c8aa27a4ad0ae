"""Entries: each is committed together with its action."""
