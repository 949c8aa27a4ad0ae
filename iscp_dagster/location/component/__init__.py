"""A source table as a Dagster component, declared in `defs.yaml`."""
