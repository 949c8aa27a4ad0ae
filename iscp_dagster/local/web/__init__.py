"""Dagster's webserver behind the guard."""
