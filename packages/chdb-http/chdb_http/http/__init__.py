"""ClickHouse's HTTP interface over the engine."""
