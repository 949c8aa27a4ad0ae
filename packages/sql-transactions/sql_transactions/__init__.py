"""Transactions of SQLite and PostgreSQL that fail with the caller's own errors, without secrets."""
