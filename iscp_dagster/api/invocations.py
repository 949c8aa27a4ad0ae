"""The durable invocations of a deployment, as its database has them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from durable_invocations.client.client import Client
from durable_invocations.ingress import facts
from durable_invocations.protocol.failures import escape_surrogates
from durable_invocations.runtime.sql.database import INVOCATIONS_ROLE
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.store.views import InvocationFilter
from iscp_dagster.joblog.sql.engine import LOG, open_engine
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.variables import INVOCATIONS_TOKEN, INVOCATIONS_URL
from iscp_dagster.serviceconsumers.errors import raise_job_errors
from iscp_dagster.serviceconsumers.runtime_client import open_client

IN_LOG = replace(INVOCATIONS_ROLE, name=LOG.name, setting=LOG.setting)
"""The ISCP log's database; its failures raise the errors of durable_invocations."""


def open_invocations(environ: Mapping[str, str]) -> SqlStore:
    """The invocations in the database of the ISCP log that the environment or the stack names.

    Raises ConfigError if neither does. The store raises the errors of durable_invocations.
    """
    from iscp_dagster.local.stack.environment import resolve_log_url

    _, log = resolve_log_url(environ)
    with raise_job_errors():
        store = SqlStore(open_engine(log, IN_LOG))
        store.ensure()
    return store


def open_invocations_client(environ: Mapping[str, str] | None = None) -> Client:
    """A client of the deployment's runtime of invocations; close it, or use it in a `with`.

    Without `environ` it reads the process's ISCP_INVOCATIONS_URL and ISCP_INVOCATIONS_TOKEN.
    Raises ConfigError if the URL is not set. The client raises the errors of durable_invocations.
    """
    variables = os.environ if environ is None else environ
    url = variables.get(INVOCATIONS_URL, "")
    if not url:
        raise ConfigError(
            f"{INVOCATIONS_URL} is not set. Start a stack (`iscp up`), whose address "
            '`eval "$(iscp env)"` sets, or name that of your `iscp invocations serve`.'
        )
    return open_client(url, variables.get(INVOCATIONS_TOKEN, ""))


def build_selection(
    *, status: str | None, service: str | None, handler: str | None, key: str | None, limit: int
) -> InvocationFilter:
    """The invocations that the arguments select. Raises ConfigError for an invalid status."""
    with raise_job_errors():
        selection = InvocationFilter() if status is None else facts.parse_status(status)
    return replace(
        selection,
        service=escape_surrogates(service or ""),
        handler=escape_surrogates(handler or ""),
        key=None if key is None else escape_surrogates(key),
        limit=limit,
    )


def read_invocation_facts(store: SqlStore, id_: str) -> dict[str, Any]:
    """An invocation with its journal, as JSON. Raises ConfigError if it is unknown."""
    invocation = store.invocation(escape_surrogates(id_))
    if invocation is None:
        raise ConfigError(
            f"There is no invocation {id_!r}; `iscp invocations list` shows those kept."
        )
    return facts.describe_with_journal(invocation, store.read_journal(id_))
