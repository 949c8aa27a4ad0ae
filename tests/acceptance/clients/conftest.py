"""Other people's clients and audits, and a served table for them."""

import pytest

from support.clients import npm
from support.clients.trades_server import AT_ONCE, serving_trades, told_by
from support.services.stack import wait_for
from support.workers.soak_length import rounds, soak_seconds

SECONDS = 180
"""The limit on a machine busy with other tests."""
SOAK_SECONDS = soak_seconds(240)
COMMITS = 4
"""Between two ends of the server."""
LIMIT = pytest.mark.timeout(SOAK_SECONDS + 600)


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    """Install the packages of npm; skip where they cannot be had."""
    return npm.install_packages(tmp_path_factory.mktemp("npm"))


@pytest.fixture
def trades(clickhouse_url, tmp_path):
    with serving_trades(clickhouse_url, tmp_path) as served:
        yield served


@pytest.fixture(
    params=[pytest.param(2, marks=LIMIT), pytest.param(None, marks=[LIMIT, pytest.mark.soak])]
)
def check_restarts(request, trades, record_property):
    """Give a check that a subscriber gets each change once while the server ends again and again.

    `read_messages()` returns the messages so far.
    """

    def check(read_messages):
        def await_messages(number):
            wait_for(
                lambda: len(read_messages()) >= number,
                SECONDS,
                lambda: f"{len(read_messages())} of {number} messages",
                every=0.005,
            )

        await_messages(trades.total)
        for _ in rounds(request.param, SOAK_SECONDS):
            middle = len(read_messages()) + trades.chance.randint(1, COMMITS * AT_ONCE)
            for _ in range(COMMITS):
                trades.commit()
            await_messages(middle)
            trades.restart()
        trades.commit()
        await_messages(trades.total)
        assert told_by(read_messages()) == trades.changes
        record_property("messages", len(read_messages()))
        record_property("ends", trades.ends)

    return check
