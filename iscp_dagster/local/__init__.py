"""The services of one machine: embedded ClickHouse, Spark, Dagster, and their stack."""
