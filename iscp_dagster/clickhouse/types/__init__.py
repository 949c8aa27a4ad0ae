"""Delta's values as ClickHouse's, on the wire and in a table."""
