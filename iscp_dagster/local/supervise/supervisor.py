"""Starts the services side by side, restarts those that end by themselves, and stops them all."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from iscp_dagster.local.services import logs
from iscp_dagster.local.services.service import Service
from iscp_dagster.local.services.state import Condition, ServiceState
from iscp_dagster.local.supervise import warded_command
from iscp_dagster.local.supervise.health_monitor import HealthMonitor, RestartPolicy, read_note
from iscp_dagster.local.supervise.suspended import resume_stopped
from iscp_dagster.local.supervise.warded_command import WardedProcess
from iscp_dagster.model.errors import UnavailableError

_LOGGER = logging.getLogger(__name__)
_POLL = 0.1
_UNWELL_GRACE = 3.0
"""Seconds that an unwell service gets to end after SIGTERM."""

Report = Callable[[ServiceState], None]
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Seconds to wait before a service is restarted: doubling, up to `longest`.

    A service that lived for `healthy` seconds starts from `first` again.
    """

    first: float = 0.1
    longest: float = 10.0
    healthy: float = 30.0

    def compute_delay(self, failures: int) -> float:
        """The wait after `failures` ends in a row (at least one)."""
        return float(min(self.longest, self.first * 2 ** min(failures - 1, 30)))


class Supervisor:
    """Keeps services running until it is stopped.

    Calls `report` at every change of a service. `lock` is an open file that each child's
    ward keeps open, so that the lock on it outlives the supervisor until the children are gone.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        report: Report,
        lock: int,
        backoff: Backoff | None = None,
        patience: RestartPolicy | None = None,
    ) -> None:
        self._services = services
        self._report = report
        self._lock = lock
        self._backoff = backoff or Backoff()
        self.policy = patience or RestartPolicy()
        self._ready: dict[str, asyncio.Event] = {}
        self._states = {service.name: _make_first_state(service) for service in services}

    async def run(self, *, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Run until `stop` is set; calls `ready` once, when every service is ready.

        Raises UnavailableError, with every child stopped, when a service does not come up.
        """
        runners = [_ServiceRunner(service, self) for service in self._services]
        self._ready = {
            service.name: keeper.ready for service, keeper in self._match_services(runners)
        }
        tasks = [asyncio.create_task(runner.keep_running()) for runner in runners]
        stopped = asyncio.create_task(stop.wait())
        resuming = asyncio.create_task(resume_stopped())
        started = asyncio.create_task(_wait_all([keeper.ready.wait() for keeper in runners]))
        try:
            await asyncio.wait([started, stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if started.done() and not stopped.done():
                ready()
            await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            dependents = [
                task for service, task in self._match_services(tasks) if service.stops_first
            ]
            await _cancel_tasks([started, stopped, resuming, *dependents])
            await _cancel_tasks(tasks)

    def record_change(self, service: Service, **fields: Any) -> None:
        """Record, log and report a change of a service."""
        state = replace(self._states[service.name], **fields)
        self._states[service.name] = state
        _LOGGER.info("%s %s pid=%s %s", state.name, state.condition.value, state.pid, state.note)
        self._report(state)

    def _match_services(self, items: Sequence[Item]) -> list[tuple[Service, Item]]:
        return list(zip(self._services, items, strict=True))

    async def wait_for_turn(self, service: Service) -> None:
        """Wait until the service that this one starts after has been ready once."""
        if service.after in self._ready:
            await self._ready[service.after].wait()

    def get_note(self, service: Service) -> str:
        """The latest note on a service."""
        return self._states[service.name].note

    async def start(self, service: Service, *, warm: bool = False) -> WardedProcess:
        return await warded_command.start(service, self._lock, warm=warm)

    @property
    def backoff(self) -> Backoff:
        return self._backoff


class _ServiceRunner:
    """Keeps one service running."""

    def __init__(self, service: Service, supervisor: Supervisor) -> None:
        self._service = service
        self._supervisor = supervisor
        self.ready = asyncio.Event()

    async def keep_running(self) -> None:
        """Run the service for ever; UnavailableError when its first start fails."""
        failures = restarts = 0
        await self._supervisor.wait_for_turn(self._service)
        while True:
            born = time.monotonic()
            status = await self._run_once(restarts)
            restarts += 1
            lived = time.monotonic() - born
            failures = 1 if lived >= self._supervisor.backoff.healthy else failures + 1
            delay = self._supervisor.backoff.compute_delay(failures)
            _LOGGER.warning(
                "%s ended with status %s after %.1f s; starting again in %.1f s",
                self._service.name, status, lived, delay,
            )  # fmt: skip
            self._supervisor.record_change(
                self._service, condition=Condition.RESTARTING, pid=None, restarts=restarts, note=""
            )
            await asyncio.sleep(delay)

    async def _run_once(self, restarts: int) -> int:
        """Run the service once, from start to end; return its exit status."""
        since = logs.size(self._service.log)
        born = time.time()
        child = await self._supervisor.start(self._service)
        try:
            self._supervisor.record_change(
                self._service, condition=Condition.STARTING, pid=child.pid
            )
            problem = await self._wait_until_ready(child, born, warm=restarts == 0)
            if problem is None:
                self.ready.set()
                return await self._watch_until_end(child, born)
            if restarts == 0:
                raise self._build_start_error(problem, since)
            _LOGGER.warning("%s %s", self._service.name, problem)
            return await child.stop()
        except asyncio.CancelledError:
            self._supervisor.record_change(self._service, condition=Condition.STOPPING)
            await asyncio.shield(child.stop())
            self._supervisor.record_change(self._service, condition=Condition.DOWN, pid=None)
            raise
        except UnavailableError:
            await child.stop()
            self._supervisor.record_change(self._service, condition=Condition.DOWN, pid=None)
            raise

    async def _watch_until_end(self, child: WardedProcess, born: float) -> int:
        """Watch a service until it ends, or end it when it stays unwell; return its exit status."""
        change = partial(self._supervisor.record_change, self._service)
        monitor = HealthMonitor(self._service, child.pid, born, change, self._supervisor.policy)
        note = self._supervisor.get_note(self._service)
        watching = asyncio.create_task(monitor.watch_until_unwell(note))
        ended = asyncio.create_task(child.wait_until_ended())
        try:
            await asyncio.wait([watching, ended], return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return ended.result()
            _LOGGER.warning("%s %s; restarting it", self._service.name, watching.result())
            return await child.stop(_UNWELL_GRACE)
        finally:
            await _cancel_tasks([watching, ended])

    async def _wait_until_ready(
        self, child: WardedProcess, born: float, *, warm: bool
    ) -> str | None:
        """Wait until the service is ready; return what went wrong, or None."""
        rising = asyncio.create_task(self._make_ready(born, warm=warm))
        ended = asyncio.create_task(child.wait_until_ended())
        try:
            done, _ = await asyncio.wait(
                [rising, ended],
                timeout=self._service.start_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if ended in done:
                return f"ended with status {ended.result()} while it started"
            if rising in done:
                return rising.result()
            return f"did not answer within {self._service.start_seconds:.0f} seconds"
        finally:
            await _cancel_tasks([rising, ended])

    async def _make_ready(self, born: float, *, warm: bool) -> str | None:
        service = self._service
        while not await self._is_answering(born):  # noqa: ASYNC110  (another process can only be polled)
            await asyncio.sleep(_POLL)
        if warm and service.warm is not None:
            self._supervisor.record_change(service, condition=Condition.WARMING)
            status = await self._run_warm_up()
            if status:
                return f"answers, but its first use failed with status {status}"
        note = await read_note(service)
        self._supervisor.record_change(service, condition=Condition.READY, note=note)
        return None

    async def _is_answering(self, born: float) -> bool:
        try:
            return await self._service.probe(born)
        except Exception:
            # A bug in one service's probe must not end the others.
            _LOGGER.exception("the probe of %s raised an error", self._service.name)
            return False

    async def _run_warm_up(self) -> int:
        child = await self._supervisor.start(self._service, warm=True)
        try:
            return await child.wait_until_ended()
        except asyncio.CancelledError:
            await asyncio.shield(child.stop())
            raise

    def _build_start_error(self, problem: str, since: int) -> UnavailableError:
        log = self._service.log
        return UnavailableError(
            f"{self._service.name} {problem}; the end of {log}:\n{logs.read_tail(log, since=since)}"
        )


def _make_first_state(service: Service) -> ServiceState:
    return ServiceState(
        name=service.name,
        condition=Condition.STARTING,
        address=service.address,
        log=str(service.log),
    )


async def _wait_all(waits: Sequence[Coroutine[Any, Any, Any]]) -> None:
    await asyncio.gather(*waits)


async def _cancel_tasks(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait until each has ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
