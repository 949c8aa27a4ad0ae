"""What `iscp serve` and the runtime of invocations log has time and level."""

import logging

import pytest

from iscp_dagster.serve.web.server import log_to_stderr


@pytest.fixture
def handlers():
    loggers = [logging.getLogger(name) for name in ("iscp_dagster", "durable_invocations")]
    held = [list(each.handlers) for each in loggers]
    for logger in loggers:
        logger.handlers.clear()
    yield
    for logger, before in zip(loggers, held, strict=True):
        logger.handlers[:] = before


@pytest.mark.parametrize("name", ["iscp_dagster.serve", "durable_invocations.runtime"])
def test_a_warning_has_time_and_level(handlers, capsys, name):
    log_to_stderr()
    logging.getLogger(name).warning("inv_1 is paused")
    assert capsys.readouterr().err[23:] == " WARNING inv_1 is paused\n"
