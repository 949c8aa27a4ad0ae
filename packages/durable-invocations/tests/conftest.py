"""Databases on a PostgreSQL, and tests that are coroutines."""

import asyncio
import inspect

import pytest
from hypothesis import HealthCheck, settings

from sql_transactions.testing import make_database_factory, run_postgres

# A test that runs slowly on a busy machine has not failed.
settings.register_profile(
    "durable_invocations", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("durable_invocations")


def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine function, in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session")
def new_postgres(tmp_path_factory):
    """A function that creates an empty database on a PostgreSQL and returns its URL."""
    with (
        run_postgres(tmp_path_factory.mktemp("runtime")) as server,
        make_database_factory(server.get_uri()) as make,
    ):
        yield make


@pytest.fixture(scope="session")
def postgres(new_postgres):
    """The URL of a PostgreSQL database, for tests that leave it empty."""
    return new_postgres()
