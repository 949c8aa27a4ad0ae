"""Dagster's runs, by the names that iterations know them by."""
