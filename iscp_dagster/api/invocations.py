"""The durable invocations of a deployment, as its database has them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from durable_invocations.client.client import Client
from durable_invocations.ingress import facts
from durable_invocations.protocol.failures import sayable
from durable_invocations.runtime.sql.database import INVOCATIONS
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.store.views import Chosen
from iscp_dagster.joblog.sql.engine import LOG, open_engine
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.variables import INVOCATIONS_TOKEN, INVOCATIONS_URL
from iscp_dagster.serviceconsumers.errors import as_job_errors
from iscp_dagster.serviceconsumers.runtime import open_client

IN_LOG = replace(INVOCATIONS, name=LOG.name, setting=LOG.setting)
"""The ISCP log's database, whose failures are the package's errors."""


def open_invocations(environ: Mapping[str, str]) -> SqlStore:
    """The invocations in the database of the ISCP log that the environment or the stack names.

    Raises ConfigError if neither does. What the store raises is the package's of invocations.
    """
    from iscp_dagster.local.stack.environment import log_of

    _, log = log_of(environ)
    with as_job_errors():
        store = SqlStore(open_engine(log, IN_LOG))
        store.ensure()
    return store


def open_invocations_client(environ: Mapping[str, str] | None = None) -> Client:
    """A client of the deployment's runtime of invocations; close it, or use it in a `with`.

    Without `environ` it reads the process's ISCP_INVOCATIONS_URL and ISCP_INVOCATIONS_TOKEN.
    Raises ConfigError if there is none. What the client raises is the package's of invocations.
    """
    given = os.environ if environ is None else environ
    url = given.get(INVOCATIONS_URL, "")
    if not url:
        raise ConfigError(
            f"{INVOCATIONS_URL} is not set. Start a stack (`iscp up`), whose address "
            '`eval "$(iscp env)"` sets, or name that of your `iscp invocations serve`.'
        )
    return open_client(url, given.get(INVOCATIONS_TOKEN, ""))


def chosen(
    *, status: str | None, service: str | None, handler: str | None, key: str | None, limit: int
) -> Chosen:
    """The invocations that the names choose. Raises ConfigError for a status that is none."""
    with as_job_errors():
        wanted = Chosen() if status is None else facts.named(status)
    return replace(
        wanted,
        service=sayable(service or ""),
        handler=sayable(handler or ""),
        key=None if key is None else sayable(key),
        limit=limit,
    )


def whole(store: SqlStore, id_: str) -> dict[str, Any]:
    """An invocation with its journal, as JSON. Raises ConfigError if it is unknown."""
    found = store.invocation(sayable(id_))
    if found is None:
        raise ConfigError(
            f"There is no invocation {id_!r}; `iscp invocations list` shows those kept."
        )
    return facts.whole(found, store.journal(id_))
