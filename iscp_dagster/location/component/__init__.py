"""A source table as a component of Dagster's, declared in `defs.yaml`."""
