"""The sender: delivers what is due in the outbox, to each endpoint whose lease it holds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from random import random as any_number
from typing import TypeVar

import anyio

from iscp_dagster.model.clock import Clock, get_utc_now
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.webhooks.due_work import BatchIdMaker
from iscp_dagster.webhooks.outbox import Outbox
from iscp_dagster.webhooks.sending.endpoint_worker import EndpointWorker, Random
from iscp_dagster.webhooks.sending.posting import Poster

Result = TypeVar("Result")
Sleep = Callable[[float], Awaitable[None]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """A sender's intervals, in seconds."""

    look: float = 0.05
    """Between two looks at whether something is due."""
    record: float = 0.02
    """From an answer to its record; other answers in between are recorded with it."""
    lease: float = 10.0
    """After this time without a sign of life, another sender takes over."""
    beat: float = 2.0
    """Between two renewals of the leases."""
    away: float = 1.0
    """Before the next database call after one without an answer."""


class Sender:
    """Delivers events until it is stopped; several may run, one per endpoint at a time.

    A message is sent again, under the same id, unless its answer was recorded.
    """

    def __init__(
        self,
        outbox: Outbox,
        endpoints: Sequence[tuple[Endpoint, Callable[[], Poster]]],
        *,
        owner: str,
        make_batch_id: BatchIdMaker,
        clock: Clock = get_utc_now,
        sleep: Sleep = asyncio.sleep,
        random: Random = any_number,
        pace: Pace | None = None,
    ) -> None:
        self._outbox = outbox
        self._endpoints = {
            endpoint.name: (endpoint, make_poster) for endpoint, make_poster in endpoints
        }
        self._owner = owner
        self._make_batch_id = make_batch_id
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._pace = pace or Pace()
        self._workers: dict[str, EndpointWorker] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._next_beat = 0.0
        self._stopping = self._ending = False
        self._lapse: asyncio.TimerHandle | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until `stop` is set; then end the attempts under way, and record them."""
        self._wake, self._heard = asyncio.Event(), asyncio.Event()
        # One thread, so that database calls happen in order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="outbox")
        stopping = asyncio.ensure_future(self._watch_stop(stop))
        recording = asyncio.ensure_future(self._record_always())
        try:
            while not stop.is_set():
                if recording.done():
                    await recording
                if not await self._try_database(self._take_turn):
                    await self._sleep(self._pace.away)
                await self._wait_for_wake()
        finally:
            stopping.cancel()
            await self._end(recording)
            self._thread.shutdown()

    async def _take_turn(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() >= self._next_beat:
            await self._keep_leases()
            self._next_beat = loop.time() + self._pace.beat
        if not self._workers:
            return
        states = await self._ask(self._outbox.poll_endpoints, sorted(self._workers))
        now = self._clock()
        for name, (state, due) in states.items():
            worker = self._workers.get(name)
            if worker is not None:
                worker.adopt(state)
                await self._begin_due_work(worker, due, now)

    async def _begin_due_work(
        self, worker: EndpointWorker, due: datetime | None, now: datetime
    ) -> None:
        room = worker.room
        if due is None or due > now or room <= 0:
            return
        work = await self._ask(
            lambda: self._outbox.prepare_work(
                worker.endpoint.name,
                room=room,
                busy=frozenset(worker.busy),
                size=worker.endpoint.batch,
                make_batch_id=self._make_batch_id if worker.batched else None,
            )
        )
        if self._workers.get(worker.endpoint.name) is worker:
            worker.begin(work)

    async def _keep_leases(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._pace.lease
        held_endpoints = await self._ask(
            self._outbox.take_leases, sorted(self._endpoints), self._owner, self._pace.lease
        )
        if loop.time() >= deadline:
            return
        states = await self._ask(
            self._outbox.poll_endpoints, sorted(held_endpoints - self._workers.keys())
        )
        for name in self._workers.keys() - held_endpoints:
            self._drop(name)
        for name, (state, _) in states.items():
            endpoint, make_poster = self._endpoints[name]
            self._workers[name] = EndpointWorker(
                endpoint=endpoint,
                poster=make_poster(),
                state=state,
                clock=self._clock,
                random=self._random,
                make_batch_id=self._make_batch_id,
                on_result=self._heard.set,
                stopping=self._stopping,
            )
        if self._lapse is not None:
            self._lapse.cancel()
        self._lapse = loop.call_at(deadline, self._drop_lapsed)

    def _drop_lapsed(self) -> None:
        """The leases have expired unrenewed: other senders may have begun."""
        _log.warning(
            "The leases of %s expired; the database does not answer.", ", ".join(self._workers)
        )
        for name in list(self._workers):
            self._drop(name)

    def _drop(self, name: str) -> None:
        """End an endpoint's attempts under way; received answers are still recorded."""
        worker = self._workers.pop(name)
        task = asyncio.ensure_future(self._finish_dropped(worker))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _finish_dropped(self, worker: EndpointWorker) -> None:
        await worker.drop()
        while not await self._record_worker(worker) and not self._ending:
            await self._sleep(self._pace.away)

    async def _record_always(self) -> None:
        while not self._ending:
            await self._heard.wait()
            self._heard.clear()
            await self._sleep(0.0 if self._ending else self._pace.record)
            if not await self._record_all() and not self._ending:
                await self._sleep(self._pace.away)

    async def _record_all(self) -> bool:
        recorded = [await self._record_worker(worker) for worker in list(self._workers.values())]
        return all(recorded)

    async def _record_worker(self, worker: EndpointWorker) -> bool:
        """Record a worker's results; False if the database does not answer."""
        if not worker.unrecorded:
            return True
        state, results, ended_work = worker.take_results()
        if results and not await self._try_database(
            lambda: self._ask(self._outbox.record_attempts, state, results)
        ):
            worker.put_back(results, ended_work)
            self._heard.set()
            return False
        worker.free(ended_work)
        for result in results:
            if result.outcome.change is not None:
                name = worker.endpoint.name
                _log.warning("Endpoint %s is %s: %s.", name, state.state, state.reason)
        if worker.room:
            self._wake.set()
        return True

    async def _end(self, recording: asyncio.Task[None]) -> None:
        if self._lapse is not None:
            self._lapse.cancel()
        workers = dict(self._workers)
        await asyncio.gather(*(worker.finish() for worker in workers.values()))
        self._ending = True
        self._heard.set()
        await asyncio.gather(recording, *self._leaving)
        await self._try_database(lambda: self._ask(self._outbox.release, workers, self._owner))

    async def _try_database(self, ask: Callable[[], Awaitable[None]]) -> bool:
        """Whether the database answered."""
        try:
            await ask()
        except UnavailableError as error:
            _log.warning("%s", error)
            return False
        return True

    async def _ask(self, call: Callable[..., Result], *arguments: object) -> Result:
        """Call the outbox in the database's thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: call(*arguments))

    async def _wait_for_wake(self) -> None:
        with anyio.move_on_after(self._pace.look):
            await self._wake.wait()
            self._wake.clear()

    async def _watch_stop(self, stop: asyncio.Event) -> None:
        """Begin no more attempts, even during a database call."""
        await stop.wait()
        self._stopping = True
        for worker in self._workers.values():
            worker.stopping = True
        self._wake.set()
