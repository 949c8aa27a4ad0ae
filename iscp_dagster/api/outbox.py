"""The outbox of the deployment that the environment names, and the endpoints that it declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from iscp_dagster.api.names import make_unknown_error
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.webhooks.history import DeliveryCount
from iscp_dagster.webhooks.outbox import Outbox
from iscp_dagster.webhooks.recording import EndpointState
from iscp_dagster.webhooks.tables import DeliveryState


@dataclass(frozen=True, kw_only=True)
class EndpointSummary:
    """One endpoint, with its counts of pending, delivered and dead events."""

    state: EndpointState
    declared: bool
    pending: int = 0
    oldest: datetime | None = None
    """When the oldest pending event was recorded."""
    delivered: int = 0
    dead: int = 0


@dataclass(frozen=True)
class DeclaredOutbox:
    """The outbox and its declared endpoints, which are imported only when needed."""

    environ: Mapping[str, str]
    outbox: Outbox
    _declared: Sequence[Endpoint] | None = field(default=None, kw_only=True)

    @cached_property
    def endpoints(self) -> list[Endpoint]:
        """The declared endpoints. Raises ConfigError if the declarations cannot be imported."""
        from iscp_dagster.api.discovery import load_endpoints

        return list(load_endpoints(self.environ) if self._declared is None else self._declared)

    def get_endpoint(self, name: str) -> Endpoint:
        """The declared endpoint. Raises NoSuchJobError, naming the declared ones."""
        for endpoint in self.endpoints:
            if endpoint.name == name:
                return endpoint
        raise make_unknown_error("endpoint", name, {endpoint.name for endpoint in self.endpoints})

    def check_endpoint(self, name: str) -> None:
        """Raise NoSuchJobError for an endpoint that is not declared and was never served."""
        if name not in self.outbox.list_endpoints():
            self.get_endpoint(name)

    def check_trigger(self, name: str) -> None:
        """Raise NoSuchJobError for a trigger that is not declared and has no events."""
        from iscp_dagster.api.discovery import load_tables

        if any(count.trigger == name for count in self.outbox.count_deliveries()):
            return
        declared = {
            trigger.name for table in load_tables(self.environ) for trigger in table.triggers
        }
        if name not in declared:
            raise make_unknown_error("trigger", name, declared)

    def summarize_endpoints(self) -> list[EndpointSummary]:
        """Every endpoint that is declared, was served or has events, by name."""
        states, counts = self.outbox.list_endpoints(), self.outbox.count_deliveries()
        declared = {endpoint.name for endpoint in self.endpoints}
        return [
            _summarize_endpoint(
                states.get(name, EndpointState(name=name)),
                [count for count in counts if count.endpoint == name],
                declared=name in declared,
            )
            for name in sorted({*states, *declared, *(count.endpoint for count in counts)})
        ]


def _summarize_endpoint(
    state: EndpointState, counts: Sequence[DeliveryCount], *, declared: bool
) -> EndpointSummary:
    def count_events(label: str) -> int:
        return sum(count.events for count in counts if count.state == label)

    oldest_times = [count.oldest for count in counts if count.state == DeliveryState.NEXT.label]
    return EndpointSummary(
        state=state,
        declared=declared,
        pending=count_events(DeliveryState.NEXT.label),
        oldest=min(oldest_times, default=None),
        delivered=count_events(DeliveryState.DELIVERED.label),
        dead=count_events(DeliveryState.DEAD.label),
    )


def open_declared_outbox(environ: Mapping[str, str]) -> DeclaredOutbox:
    """The outbox in the ISCP log that the environment or the running stack names.

    Raises ConfigError if neither does.
    """
    from iscp_dagster.local.stack.environment import resolve_log_url

    variables, url = resolve_log_url(environ)
    log = SqlLog(url)
    log.ensure()
    return DeclaredOutbox(variables, Outbox(log.engine))
