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

from iscp_dagster.model.clock import Clock, utc_now
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.webhooks.claims import BatchId
from iscp_dagster.webhooks.outbox import Outbox
from iscp_dagster.webhooks.sending.outlet import Outlet, Random
from iscp_dagster.webhooks.sending.posting import Poster

Result = TypeVar("Result")
Sleep = Callable[[float], Awaitable[None]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often a sender does what; seconds."""

    look: float = 0.05
    """Between two looks at whether something is due."""
    record: float = 0.02
    """From an answer to its record: what is answered meanwhile is recorded with it."""
    lease: float = 10.0
    """After this time without a sign of life, another sender takes over."""
    beat: float = 2.0
    """Between two renewals of the leases."""
    away: float = 1.0
    """Before the database is asked again when it did not answer."""


class Sender:
    """Delivers events until it is stopped; several may run, each endpoint is one's at a time.

    A message is sent again, under the same id, unless its answer was recorded.
    """

    def __init__(
        self,
        outbox: Outbox,
        endpoints: Sequence[tuple[Endpoint, Callable[[], Poster]]],
        *,
        owner: str,
        batch_id: BatchId,
        clock: Clock = utc_now,
        sleep: Sleep = asyncio.sleep,
        random: Random = any_number,
        pace: Pace | None = None,
    ) -> None:
        self._outbox = outbox
        self._endpoints = {each.name: (each, poster) for each, poster in endpoints}
        self._owner = owner
        self._batch_id = batch_id
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._pace = pace or Pace()
        self._outlets: dict[str, Outlet] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._next_beat = 0.0
        self._stopping = self._ending = False
        self._lapse: asyncio.TimerHandle | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until `stop` is set; then end the attempts under way, and record them."""
        self._wake, self._heard = asyncio.Event(), asyncio.Event()
        # One thread: what the database is asked for happens in order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="outbox")
        stopping = asyncio.ensure_future(self._stopped(stop))
        recording = asyncio.ensure_future(self._record_always())
        try:
            while not stop.is_set():
                if recording.done():
                    await recording
                if not await self._patiently(self._turn):
                    await self._sleep(self._pace.away)
                await self._rest()
        finally:
            stopping.cancel()
            await self._end(recording)
            self._thread.shutdown()

    async def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() >= self._next_beat:
            await self._keep_leases()
            self._next_beat = loop.time() + self._pace.beat
        if not self._outlets:
            return
        found = await self._ask(self._outbox.look, sorted(self._outlets))
        now = self._clock()
        for name, (state, due) in found.items():
            outlet = self._outlets.get(name)
            if outlet is not None:
                outlet.adopt(state)
                await self._claim(outlet, due, now)

    async def _claim(self, outlet: Outlet, due: datetime | None, now: datetime) -> None:
        room = outlet.room
        if due is None or due > now or room <= 0:
            return
        work = await self._ask(
            lambda: self._outbox.claim(
                outlet.endpoint.name,
                room=room,
                busy=frozenset(outlet.busy),
                size=outlet.endpoint.batch,
                batch_id=self._batch_id if outlet.batched else None,
            )
        )
        if self._outlets.get(outlet.endpoint.name) is outlet:
            outlet.begin(work)

    async def _keep_leases(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._pace.lease
        held = await self._ask(
            self._outbox.hold, sorted(self._endpoints), self._owner, self._pace.lease
        )
        if loop.time() >= until:
            return
        states = await self._ask(self._outbox.look, sorted(held - self._outlets.keys()))
        for name in self._outlets.keys() - held:
            self._drop(name)
        for name, (state, _) in states.items():
            endpoint, poster = self._endpoints[name]
            self._outlets[name] = Outlet(
                endpoint=endpoint,
                poster=poster(),
                state=state,
                clock=self._clock,
                random=self._random,
                batch_id=self._batch_id,
                heard=self._heard.set,
                stopping=self._stopping,
            )
        if self._lapse is not None:
            self._lapse.cancel()
        self._lapse = loop.call_at(until, self._lost)

    def _lost(self) -> None:
        """The leases have run out unrenewed: other senders may have begun."""
        _log.warning("The leases of %s ran out; the database is away.", ", ".join(self._outlets))
        for name in list(self._outlets):
            self._drop(name)

    def _drop(self, name: str) -> None:
        """End what is under way of an endpoint; what was answered is still recorded."""
        outlet = self._outlets.pop(name)
        task = asyncio.ensure_future(self._dropped(outlet))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _dropped(self, outlet: Outlet) -> None:
        await outlet.drop()
        while not await self._recorded(outlet) and not self._ending:
            await self._sleep(self._pace.away)

    async def _record_always(self) -> None:
        while not self._ending:
            await self._heard.wait()
            self._heard.clear()
            await self._sleep(0.0 if self._ending else self._pace.record)
            if not await self._record_all() and not self._ending:
                await self._sleep(self._pace.away)

    async def _record_all(self) -> bool:
        done = [await self._recorded(each) for each in list(self._outlets.values())]
        return all(done)

    async def _recorded(self, outlet: Outlet) -> bool:
        """Record what there is of an outlet; False if the database is away."""
        if not outlet.unrecorded:
            return True
        state, results, ended = outlet.taken()
        if results and not await self._patiently(
            lambda: self._ask(self._outbox.record, state, results)
        ):
            outlet.put_back(results, ended)
            self._heard.set()
            return False
        outlet.free(ended)
        for each in results:
            if each.outcome.change is not None:
                name = outlet.endpoint.name
                _log.warning("Endpoint %s is %s: %s.", name, state.state, state.reason)
        if outlet.room:
            self._wake.set()
        return True

    async def _end(self, recording: asyncio.Task[None]) -> None:
        if self._lapse is not None:
            self._lapse.cancel()
        outlets = dict(self._outlets)
        await asyncio.gather(*(each.finish() for each in outlets.values()))
        self._ending = True
        self._heard.set()
        await asyncio.gather(recording, *self._leaving)
        await self._patiently(lambda: self._ask(self._outbox.release, outlets, self._owner))

    async def _patiently(self, ask: Callable[[], Awaitable[None]]) -> bool:
        """Whether the database answered."""
        try:
            await ask()
        except UnavailableError as error:
            _log.warning("%s", error)
            return False
        return True

    async def _ask(self, call: Callable[..., Result], *arguments: object) -> Result:
        """Call the outbox in the thread that asks the database."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: call(*arguments))

    async def _rest(self) -> None:
        with anyio.move_on_after(self._pace.look):
            await self._wake.wait()
            self._wake.clear()

    async def _stopped(self, stop: asyncio.Event) -> None:
        """Begin no attempt any more, even while the database is asked for something."""
        await stop.wait()
        self._stopping = True
        for outlet in self._outlets.values():
            outlet.stopping = True
        self._wake.set()
