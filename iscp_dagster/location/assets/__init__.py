"""Source tables and indexes as assets, and their runs."""
