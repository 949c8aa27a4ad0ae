"""What runs on this machine alone: the embedded ClickHouse, Spark, Dagster, and their stack."""
