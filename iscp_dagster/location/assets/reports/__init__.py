"""What runs report to Dagster: materializations, data versions and what they were built from."""
