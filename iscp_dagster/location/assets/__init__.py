"""Source tables and indexes as assets, and what their runs do."""
