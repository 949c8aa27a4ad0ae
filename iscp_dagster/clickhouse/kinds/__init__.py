"""The kinds of index: how each differs from a mirror, in declaration, tables, views and rows."""
