"""ClickHouse as indexes need it."""
