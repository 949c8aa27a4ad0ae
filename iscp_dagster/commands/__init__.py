"""Commands of `iscp` that work on tables and indexes."""
