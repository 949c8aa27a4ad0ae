from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    """Give commands a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
