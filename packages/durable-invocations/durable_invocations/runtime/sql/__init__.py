"""The store in SQLite or PostgreSQL: tables, and the statements of each operation."""
