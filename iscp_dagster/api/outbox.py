"""The outbox of the deployment that the environment names, and the endpoints that it declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from iscp_dagster.api.names import no_such
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.webhooks.history import Count
from iscp_dagster.webhooks.outbox import Outbox
from iscp_dagster.webhooks.recording import EndpointState
from iscp_dagster.webhooks.tables import State


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One endpoint, with what waits for it and what it did not take."""

    state: EndpointState
    declared: bool
    pending: int = 0
    oldest: datetime | None = None
    """When the oldest pending event was recorded."""
    delivered: int = 0
    dead: int = 0


@dataclass(frozen=True)
class Deliveries:
    """The outbox, with the declarations that it serves, which are read where they are needed."""

    environ: Mapping[str, str]
    outbox: Outbox
    _given: Sequence[Endpoint] | None = field(default=None, kw_only=True)

    @cached_property
    def endpoints(self) -> list[Endpoint]:
        """The declared endpoints. Raises ConfigError if the declarations cannot be imported."""
        from iscp_dagster.api.discovery import declared_endpoints

        return list(declared_endpoints(self.environ) if self._given is None else self._given)

    def endpoint(self, name: str) -> Endpoint:
        """The declared endpoint. Raises NoSuchJobError, naming those that there are."""
        for each in self.endpoints:
            if each.name == name:
                return each
        raise no_such("endpoint", name, {each.name for each in self.endpoints})

    def check_endpoint(self, name: str) -> None:
        """Raise NoSuchJobError for an endpoint that is neither declared nor was served."""
        if name not in self.outbox.endpoints():
            self.endpoint(name)

    def check_trigger(self, name: str) -> None:
        """Raise NoSuchJobError for a trigger that is not declared and has no events."""
        from iscp_dagster.api.discovery import declared

        if any(each.trigger == name for each in self.outbox.counts()):
            return
        known = {trigger.name for table in declared(self.environ) for trigger in table.triggers}
        if name not in known:
            raise no_such("trigger", name, known)

    def standings(self) -> list[Standing]:
        """Every endpoint that is declared, was served or has events, by name."""
        held, counts = self.outbox.endpoints(), self.outbox.counts()
        declared = {each.name for each in self.endpoints}
        return [
            _standing(
                held.get(name, EndpointState(name=name)),
                [each for each in counts if each.endpoint == name],
                declared=name in declared,
            )
            for name in sorted({*held, *declared, *(each.endpoint for each in counts)})
        ]


def _standing(state: EndpointState, counts: Sequence[Count], *, declared: bool) -> Standing:
    def events(label: str) -> int:
        return sum(each.events for each in counts if each.state == label)

    waiting = [each.oldest for each in counts if each.state == State.NEXT.label]
    return Standing(
        state=state,
        declared=declared,
        pending=events(State.NEXT.label),
        oldest=min(waiting, default=None),
        delivered=events(State.DELIVERED.label),
        dead=events(State.DEAD.label),
    )


def open_deliveries(environ: Mapping[str, str]) -> Deliveries:
    """The outbox in the ISCP log that the environment or the running stack names.

    Raises ConfigError if neither does.
    """
    from iscp_dagster.local.stack.environment import log_of

    found, url = log_of(environ)
    log = SqlLog(url)
    log.ensure()
    return Deliveries(found, Outbox(log.engine))
