"""The runtime of invocations with its HTTP, in a thread of the test."""

import threading
from contextlib import contextmanager

import uvicorn
from asgiservers import SECONDS, bound

from durable_invocations.runtime.sql.database import open_database
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.timers import SteadyClock
from iscp_dagster.jobservices.server import application, settings_of
from iscp_dagster.model.variables import INVOCATIONS_TOKEN, LOG_URL


@contextmanager
def runtime_of(log_url, *, token="", services=None):
    """The address of a runtime that drives what is in this database."""
    environ = {LOG_URL: log_url, INVOCATIONS_TOKEN: token}
    settings = settings_of(environ, "127.0.0.1", services=services)
    store = SqlStore(open_database(log_url, kept=True), owner=settings.runtime.owner)
    store.ensure()
    listening, port = bound()
    app = application(settings, store, SteadyClock(), f"http://127.0.0.1:{port}")
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(SECONDS)
        listening.close()
        store.engine.dispose()
        assert not thread.is_alive()
