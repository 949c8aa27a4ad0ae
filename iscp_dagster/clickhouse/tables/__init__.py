"""The tables and views of an index, by generation."""
