"""The runtime of invocations as an HTTP server in a thread of the test."""

from contextlib import contextmanager

from asgi_guards.testing import run_server
from durable_invocations.runtime.sql.database import open_database
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.timers import SteadyClock
from iscp_dagster.jobservices.runtime_server import build_application, build_settings
from iscp_dagster.model.variables import INVOCATIONS_TOKEN, LOG_URL
from runtime_support.endpoints.asgi_servers import bound


@contextmanager
def runtime_of(log_url, *, token="", services=None):
    """Run a runtime on this database; yield its address."""
    environ = {LOG_URL: log_url, INVOCATIONS_TOKEN: token}
    settings = build_settings(environ, "127.0.0.1", services=services)
    store = SqlStore(open_database(log_url, keep_open=True), owner=settings.runtime.owner)
    store.ensure()
    listening, port = bound()
    app = build_application(settings, store, SteadyClock(), f"http://127.0.0.1:{port}")
    try:
        with run_server(app, listening=listening, lifespan="on") as served:
            yield served.url
    finally:
        store.engine.dispose()
