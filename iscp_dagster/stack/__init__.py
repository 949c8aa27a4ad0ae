"""The embedded stack: ClickHouse, Spark and Dagster as supervised children of one process."""
