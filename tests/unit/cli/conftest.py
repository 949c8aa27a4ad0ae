from importlib import import_module

import pytest

SHOWING = ("jobs.show", "dlq.show", "invocations.show", "parts.tables")


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    """Give commands a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in SHOWING:
        monkeypatch.setattr(import_module(f"iscp_dagster.cli.{name}"), "is_terminal", lambda: True)


@pytest.fixture
def piped(_terminal, monkeypatch):
    """Give commands a stdout that is no terminal, such as a pipe."""
    for name in SHOWING:
        place = import_module(f"iscp_dagster.cli.{name}")
        monkeypatch.setattr(place, "is_terminal", lambda: False)
