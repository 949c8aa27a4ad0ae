"""Log lines of `iscp serve` and of the runtime of invocations have time and level."""

import logging

import pytest

from iscp_dagster.serve.web.server import log_to_stderr


@pytest.fixture
def no_handlers(monkeypatch):
    for name in ("iscp_dagster", "durable_invocations"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])


@pytest.mark.parametrize("name", ["iscp_dagster.serve", "durable_invocations.runtime"])
def test_a_warning_has_time_and_level(no_handlers, capsys, name):
    log_to_stderr()
    logging.getLogger(name).warning("inv_1 is paused")
    assert capsys.readouterr().err[23:] == " WARNING inv_1 is paused\n"
