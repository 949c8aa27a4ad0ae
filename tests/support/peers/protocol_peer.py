"""A runtime written from the protocol's text alone, to test endpoints with."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from contextlib import nullcontext, suppress
from random import Random
from typing import Any, Self

from support.peers.attempt import Attempt, Ending
from support.peers.entry_model import World
from support.peers.fault_plans import FailedError, Invocation, Plan
from support.peers.streams import Duplex, Exchange, exchange
from support.peers.wire import ACK, Packet, packet, result_of

MANIFEST = "application/vnd.restate.endpointmanifest.v1+json"
HANG_SECONDS = 60.0


class Peer:
    """Drives the services of one endpoint until their invocations end."""

    def __init__(self, url: str, *, duplex: bool, version: int, hang_up: bool = False) -> None:
        self.url, self.duplex, self.version = url, duplex, version
        self.hang_up = hang_up
        """Whether to leave a stream after its last message, for an SDK that does not end it."""
        self.world = World(self._submit)
        self.random = Random(0)
        self._kinds: dict[tuple[str, str], str] = {}
        self._keyed: dict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self.discover()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._broken.done():
            with suppress(BaseException):
                self._broken.result()

    def _stream(self) -> Exchange | Duplex:
        return Duplex(self.url) if self.duplex else Exchange(self.url)

    async def discover(self) -> None:
        """Read which services there are, and which handlers take turns."""
        stream = self._stream()
        text = await exchange(stream, "GET", "/discover", [("accept", MANIFEST)], b"")
        assert stream.status == 200, (stream.status, text)
        assert stream.headers["content-type"] == MANIFEST, stream.headers
        default_kinds = {"VIRTUAL_OBJECT": "EXCLUSIVE", "WORKFLOW": "WORKFLOW", "SERVICE": ""}
        for service in json.loads(text)["services"]:
            for handler in service["handlers"]:
                kind = handler.get("ty") or default_kinds[service["ty"]]
                self._kinds[service["name"], handler["name"]] = kind

    async def call(
        self,
        service: str,
        handler: str,
        argument: Any = None,
        *,
        key: str = "",
        headers: dict[str, str] | None = None,
    ) -> Any:
        """Invoke the handler, and return what it returns."""
        pairs = [{"key": name, "value": value} for name, value in (headers or {}).items()]
        return await self.result(self.begin(service, handler, argument, key=key, headers=pairs))

    def begin(
        self, service: str, handler: str, argument: Any = None, *, key: str = "", **more: Any
    ) -> Invocation:
        return self._submit(service, handler, json.dumps(argument).encode(), key=key, **more)

    async def result(self, invocation: Invocation) -> Any:
        """Wait for the invocation's end; its failure is raised."""
        done, _ = await asyncio.wait(
            {invocation.output, self._broken}, timeout=HANG_SECONDS, return_when="FIRST_COMPLETED"
        )
        assert done, f"hung: {invocation}"
        if self._broken.done():
            self._broken.result()
        kind, value = invocation.output.result()
        if kind == "failure":
            raise FailedError(value)
        return json.loads(value) if value else None

    def _submit(
        self,
        service: str,
        handler: str,
        argument: bytes,
        *,
        key: str = "",
        headers: list[dict[str, str]] = (),
        idempotency_key: str | None = None,
        plan: Plan | None = None,
    ) -> Invocation:
        known = self.world.by_name
        name: Any = (service, key, handler, idempotency_key)
        kind = self._kinds.get((service, handler))
        if kind == "WORKFLOW":
            name, idempotency_key = (service, key), key
        if idempotency_key is not None and name in known:
            return known[name]
        invocation = Invocation(
            id=self.random.randbytes(16),
            service=service,
            handler=handler,
            key=key,
            alone=kind in {"EXCLUSIVE", "WORKFLOW"},
            plan=plan or Plan(),
            journal=[packet("Input", headers=headers, value=argument)],
            output=asyncio.get_running_loop().create_future(),
        )
        self.world.invocations[invocation.id] = invocation
        if idempotency_key is not None:
            known[name] = invocation
        task = asyncio.create_task(self._guard(invocation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return invocation

    async def _guard(self, invocation: Invocation) -> None:
        try:
            key = invocation.service, invocation.key
            async with self._keyed[key] if invocation.alone else nullcontext():
                await self._drive(invocation)
        except Exception as error:  # noqa: BLE001
            if not self._broken.done():
                self._broken.set_exception(error)

    async def _drive(self, invocation: Invocation) -> None:
        while not invocation.output.done():
            invocation.attempts += 1
            assert invocation.attempts <= invocation.plan.attempts, invocation
            stream = self._stream()
            attempt = Attempt(invocation, self.world, stream, self.version, hang_up=self.hang_up)
            ending = await attempt.run()
            failed = ending not in {Ending.DONE, Ending.SUSPENDED}
            invocation.retries = invocation.retries + 1 if failed else 0
            if ending is Ending.DONE:
                result = result_of(invocation.journal[-1])
                invocation.output.set_result(result or ("value", b""))
            elif ending is Ending.SUSPENDED:
                await self._await_resumption(invocation)

    @staticmethod
    async def _await_resumption(invocation: Invocation) -> None:
        """Wait until one of the entries that it is suspended on has its result."""

        def is_ready(index: int) -> bool:
            entry: Packet = invocation.journal[index]
            return entry.completed or bool(entry.flags & ACK)

        while not any(is_ready(index) for index in invocation.suspended[-1]):
            invocation.changed.clear()
            await asyncio.wait_for(invocation.changed.wait(), HANG_SECONDS)
