"""Runs a stack in this process until a stop signal."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone

from iscp_dagster.clickhouse.connect.endpoint import split_urls
from iscp_dagster.local.services import clickhouse_server, dagster_server, logs, spark_server, state
from iscp_dagster.local.services.lock import HomeLocks
from iscp_dagster.local.services.service import Service
from iscp_dagster.local.services.settings import (
    CLICKHOUSE,
    DAGSTER,
    GRAPHQL,
    INVOCATIONS,
    PARTS,
    SPARK,
    StackSettings,
    redact_address,
)
from iscp_dagster.local.services.state import Condition, ServiceState, StackState
from iscp_dagster.local.stack import http_servers, iteration_cancellation, plan, ports
from iscp_dagster.local.supervise.supervisor import Supervisor
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.model.variables import LAKE

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# An earlier supervisor may just have been killed: its children need this long to end.
LEFTOVER_SECONDS = 45.0

Watch = Callable[[StackState], None]


def run(settings: StackSettings, watch: Watch) -> StackState | None:
    """Run the stack of a home until a stop signal; None when another process already runs it.

    Calls `watch` at every change. Raises UnavailableError when a service does not come up, or when
    an earlier stack's processes do not end. Returns the last state, whose condition is `DOWN`.
    """
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    locks = HomeLocks(settings.home)
    with locks.hold(LEFTOVER_SECONDS) as lock:
        if lock is None:
            if locks.is_supervised():
                return None
            raise UnavailableError(
                f"processes of an earlier stack in {settings.home} have not ended; "
                "end them, then try again"
            )
        _log_to_file(settings)
        state_writer = _StateWriter(settings, watch)
        services = build(settings)
        try:
            with ports.block_ipv6_ports(plan.get_own_ports(settings).values()):
                asyncio.run(_supervise_services(services, state_writer, lock, settings))
        finally:
            iteration_cancellation.cancel_iterations(settings)
            state_writer.set_condition(Condition.DOWN)
        return state_writer.state


def build(settings: StackSettings) -> list[Service]:
    """The services that the settings select, prepared to start."""
    settings.logs.mkdir(parents=True, exist_ok=True)
    services = []
    if CLICKHOUSE in settings.services and settings.clickhouse_url is None:
        services.append(clickhouse_server.build_service(settings))
    if SPARK in settings.services and settings.spark_remote is None:
        services.append(spark_server.build_service(settings))
    if DAGSTER in settings.services:
        dagster_server.prepare(settings)
        services += dagster_server.build_services(settings)
    if GRAPHQL in settings.services:
        services.append(http_servers.build_graphql_service(settings))
    if INVOCATIONS in settings.services:
        services.append(http_servers.build_invocations_service(settings))
    for service in services:
        logs.rotate(service.log)
    return services


async def _supervise_services(
    services: list[Service], state_writer: _StateWriter, lock: int, settings: StackSettings
) -> None:
    stop = asyncio.Event()

    def handle_stop() -> None:
        state_writer.set_condition(Condition.STOPPING)
        dagster_server.signal_end(settings)
        stop.set()

    loop = asyncio.get_running_loop()
    for signum in STOP_SIGNALS:
        loop.add_signal_handler(signum, handle_stop)
    supervisor = Supervisor(services, report=state_writer.record_service, lock=lock)
    await supervisor.run(stop=stop, ready=lambda: state_writer.set_condition(Condition.READY))


class _StateWriter:
    """Writes stack.json at every change and notifies the watcher."""

    def __init__(self, settings: StackSettings, watch: Watch) -> None:
        self._home = settings.home
        self._watch = watch
        self.state = StackState(
            condition=Condition.STARTING,
            home=str(settings.home),
            supervisor=os.getpid(),
            started_at=datetime.now(timezone.utc).isoformat(),
            services=tuple(_list_initial_states(settings)),
            log_url=redact_address(settings.log),
            lake=os.environ.get(LAKE, str(settings.default_lake)),
            clickhouse_urls=" ".join(
                map(redact_address, split_urls(settings.clickhouse_urls or ""))
            ),
        )
        self._write_state()

    def set_condition(self, condition: Condition) -> None:
        self.state = replace(self.state, condition=condition)
        self._write_state()

    def record_service(self, service: ServiceState) -> None:
        services = tuple(
            service if current.name == service.name else current for current in self.state.services
        )
        self.state = replace(self.state, services=services)
        self._write_state()

    def _write_state(self) -> None:
        state.write(self._home, self.state)
        self._watch(self.state)


def _list_initial_states(settings: StackSettings) -> list[ServiceState]:
    """Every service of the stack before it starts, including those that run elsewhere."""
    elsewhere = {CLICKHOUSE: settings.clickhouse_url, SPARK: settings.spark_remote}
    addresses = {
        CLICKHOUSE: settings.clickhouse_address_with_password,
        SPARK: settings.spark_address_with_token,
        DAGSTER: settings.dagster,
        GRAPHQL: settings.graphql,
        INVOCATIONS: settings.invocations,
    }
    return [
        ServiceState(
            name=name,
            condition=Condition.EXTERNAL if elsewhere.get(name) else Condition.STARTING,
            address=redact_address(addresses.get(name, "")),
        )
        for service in settings.services
        for name in PARTS[service]
    ]


def _log_to_file(settings: StackSettings) -> None:
    log = settings.logs / "supervisor.log"
    logs.rotate(log)
    handler = logging.FileHandler(log, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("iscp_dagster.local")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
