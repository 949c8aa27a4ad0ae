"""Delta's types and values in ClickHouse: on the wire and in a table."""
