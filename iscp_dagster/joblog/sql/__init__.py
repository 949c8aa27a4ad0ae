"""The log in SQLite or PostgreSQL."""
