"""Dagster's runs, by the names that iterations have for them."""
