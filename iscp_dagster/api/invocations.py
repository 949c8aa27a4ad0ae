"""The durable invocations of a deployment, as its database has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from iscp_dagster.invocations.ingress import facts
from iscp_dagster.invocations.protocol.failures import sayable
from iscp_dagster.invocations.runtime.sql.store import SqlStore
from iscp_dagster.invocations.runtime.store.protocol import Store
from iscp_dagster.invocations.runtime.store.views import Chosen
from iscp_dagster.joblog.sql.engine import open_engine
from iscp_dagster.model.errors import ConfigError


def open_invocations(environ: Mapping[str, str]) -> Store:
    """The invocations in the database of the ISCP log that the environment or the stack names.

    Raises ConfigError if neither does.
    """
    from iscp_dagster.local.stack.environment import log_of

    _, log = log_of(environ)
    store = SqlStore(open_engine(log))
    store.ensure()
    return store


def chosen(
    *, status: str | None, service: str | None, handler: str | None, key: str | None, limit: int
) -> Chosen:
    """The invocations that the names choose. Raises ConfigError for a status that is none."""
    return replace(
        Chosen() if status is None else facts.named(status),
        service=sayable(service or ""),
        handler=sayable(handler or ""),
        key=None if key is None else sayable(key),
        limit=limit,
    )


def whole(store: Store, id_: str) -> dict[str, Any]:
    """An invocation with its journal, as JSON. Raises ConfigError if it is unknown."""
    found = store.invocation(sayable(id_))
    if found is None:
        raise ConfigError(
            f"There is no invocation {id_!r}; `iscp invocations list` shows those kept."
        )
    return facts.whole(found, store.journal(id_))
