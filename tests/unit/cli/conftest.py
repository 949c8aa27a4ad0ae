from importlib import import_module

import pytest

from support.clients.cli import CommandLine

SHOWING = ("jobs.show", "dlq.show", "invocations.show", "parts.tables")


def set_terminal(monkeypatch, is_terminal):
    for name in SHOWING:
        module = import_module(f"iscp_dagster.cli.{name}")
        monkeypatch.setattr(module, "is_terminal", lambda: is_terminal)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    """Give commands a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    set_terminal(monkeypatch, is_terminal=True)


@pytest.fixture
def piped(_terminal, monkeypatch):
    """Give commands a stdout that is no terminal, such as a pipe."""
    set_terminal(monkeypatch, is_terminal=False)


@pytest.fixture
def command_line(capsys, monkeypatch):
    return CommandLine(capsys, monkeypatch)
