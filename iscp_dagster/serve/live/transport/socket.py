"""Websockets with the subprotocol graphql-transport-ws: what a `Conversation` decides, done."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from graphql import GraphQLError, OperationType
from starlette.websockets import WebSocket, WebSocketDisconnect

from iscp_dagster.serve.access import Access, UnauthenticatedError, Viewer, bearer
from iscp_dagster.serve.graph.documents import DocumentError, Shape, checked
from iscp_dagster.serve.graph.executing import executed
from iscp_dagster.serve.graph.schemas import Schemas
from iscp_dagster.serve.graph.told import said, told
from iscp_dagster.serve.live.errors import SubscriberTooSlowError, SubscriptionError
from iscp_dagster.serve.live.service import Listening
from iscp_dagster.serve.live.transport import protocol
from iscp_dagster.serve.live.transport.operations import RefusedOperationError, Telling
from iscp_dagster.serve.reads.caps import Asking, Caps

LOGGER = logging.getLogger(__name__)
_THREADS = ThreadPoolExecutor(max_workers=8, thread_name_prefix="iscp-tokens")
"""Those of tokens alone: readings that take long must not hold up who connects."""
Errors = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class SocketBounds:
    """What the server takes on."""

    connections: int = 2_000
    operations: int = 100
    """Of one connection, at a time."""
    message: int = 256 * 1024
    """Bytes of a client's message."""
    init_seconds: float = 10.0
    """How long a connection may take to send `connection_init`."""
    stuck_seconds: float = 30.0
    """How long a message may wait for the client to read those before it."""
    close_seconds: float = 10.0
    """How long to try to tell a client that does not read why its connection ends."""
    check_seconds: float = 2.0
    """How often tokens are looked up again."""
    together: int = 8
    """Queries by websocket that are executed at the same time."""
    shape: Shape = field(default_factory=Shape)
    caps: Caps = field(default_factory=Caps)


@dataclass(kw_only=True)
class Sockets:
    """All websockets of a server. `beside` must run while the application does."""

    schemas: Schemas
    access: Access
    bounds: SocketBounds = field(default_factory=SocketBounds)
    open: set[Connection] = field(default_factory=set, init=False)
    queries: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.queries = asyncio.Semaphore(self.bounds.together)

    async def endpoint(self, websocket: WebSocket) -> None:
        """Serve one connection to its end."""
        connection = Connection(sockets=self, websocket=websocket)
        if protocol.SUBPROTOCOL not in websocket.scope.get("subprotocols", ()):
            await websocket.accept()
            await connection.close(protocol.NOT_ACCEPTABLE, "Subprotocol not acceptable")
            return
        await websocket.accept(subprotocol=protocol.SUBPROTOCOL)
        if len(self.open) >= self.bounds.connections:
            await connection.close(
                protocol.OVERLOADED, "This server has as many connections as it takes"
            )
            return
        self.open.add(connection)
        try:
            await connection.serve()
        finally:
            self.open.discard(connection)

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Look up tokens again while it runs; in the end, have clients connect again."""
        watch = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watch.cancel()
            ends = [each.close(protocol.RESTART, "The server restarts") for each in self.open]
            await asyncio.gather(*ends, return_exceptions=True)

    async def _watch(self) -> None:
        looking = asyncio.create_task(self.check_tokens())
        try:
            while True:
                await asyncio.sleep(self.bounds.check_seconds)
                for connection in self.open:
                    connection.check_stuck()
                # A user's function may take long; meanwhile slow clients are not kept.
                if looking.done():
                    looking = asyncio.create_task(self.check_tokens())
        finally:
            looking.cancel()

    async def check_tokens(self) -> None:
        """End the connections whose token was withdrawn, or names other tenants now."""
        if self.access.open:
            return
        tokens = {each.token for each in self.open if each.viewer is not None}
        known = dict(zip(tokens, await asyncio.gather(*map(self._known, tokens)), strict=True))
        for connection in list(self.open):
            seen = known.get(connection.token)
            if connection.viewer is not None and seen and connection.viewer not in seen:
                connection.refuse("The token was withdrawn")

    async def viewer(self, token: str | None) -> Viewer:
        """Who has the token. Raises what the access raises."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_THREADS, self.access.viewer, token)

    async def _known(self, token: str | None) -> Sequence[Viewer | None]:
        """Who has the token now, or None; empty if that cannot be told now."""
        try:
            return [await self.viewer(token)]
        except UnauthenticatedError:
            return [None]
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            LOGGER.warning("Tokens cannot be looked up now: %s", type(error).__name__)
            return []


@dataclass(eq=False, kw_only=True)
class Connection:
    """One client's connection."""

    sockets: Sockets
    websocket: WebSocket
    conversation: protocol.Conversation = field(init=False)
    viewer: Viewer | None = field(default=None, init=False)
    token: str | None = field(default=None, init=False)
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _waiting: dict[int, tuple[float, Listening]] = field(default_factory=dict, init=False)
    """Since when a subscription's message waits to be sent, by serial."""
    _listening: dict[int, Listening] = field(default_factory=dict, init=False)
    _others: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _over: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        self.conversation = protocol.Conversation(most=self.sockets.bounds.operations)

    async def serve(self) -> None:
        """Take in messages until the connection ends."""
        receiving = asyncio.create_task(self._receive())
        over = asyncio.create_task(self._over.wait())
        timing = asyncio.create_task(self._wait_for_init())
        try:
            await asyncio.wait({receiving, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.conversation.close(protocol.RESTART, "")
            tasks = [receiving, over, timing, *self._tasks.values(), *self._others]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self) -> None:
        while True:
            message = await self.websocket.receive()
            if message["type"] != "websocket.receive":
                return
            text = message.get("text")
            frame = message.get("bytes") or b"" if text is None else text
            if len(frame) > self.sockets.bounds.message:
                most = f"{self.sockets.bounds.message:,}"
                await self.close(protocol.TOO_BIG, f"A message has at most {most} bytes")
            else:
                await self.do(self.conversation.received(frame))

    async def _wait_for_init(self) -> None:
        await asyncio.sleep(self.sockets.bounds.init_seconds)
        await self.do(self.conversation.waited())

    async def close(self, code: int, reason: str) -> None:
        """End every operation and the connection."""
        await self.do(self.conversation.close(code, reason))

    async def do(self, actions: Sequence[protocol.Action]) -> None:
        """Do what the conversation decided."""
        for action in actions:
            if isinstance(action, protocol.Send):
                await self._send(action.message)
            elif isinstance(action, protocol.Close):
                await self._close(action)
            elif isinstance(action, protocol.Admit):
                await self._admit(action.payload)
            elif isinstance(action, protocol.Start):
                self._tasks[action.serial] = asyncio.create_task(self._run(action))
            else:
                self._stop(action.serial)

    async def _send(self, message: Mapping[str, Any]) -> None:
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
        # A client that is gone ends `receive` too.
        with suppress(WebSocketDisconnect, RuntimeError):
            await self.websocket.send_text(text)

    async def _close(self, action: protocol.Close) -> None:
        with (
            suppress(WebSocketDisconnect, RuntimeError),
            anyio.move_on_after(self.sockets.bounds.close_seconds),
        ):
            await self.websocket.close(action.code, action.reason)
        self._over.set()

    def _stop(self, serial: int) -> None:
        task = self._tasks.pop(serial, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def _admit(self, payload: Mapping[str, Any]) -> None:
        self.token = token_of(payload, self.websocket.headers.get("authorization"))
        try:
            self.viewer = await self.sockets.viewer(self.token)
        except UnauthenticatedError:
            await self.do(self.conversation.refused())
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            said(error)
            await self.do(self.conversation.refused())
        else:
            await self.do(self.conversation.admitted())

    async def _run(self, start: protocol.Start) -> None:
        """Run one operation to its end."""
        serial = start.serial
        try:
            async with aclosing(self._answers(start)) as answers:
                async for answer in answers:
                    await self._tell(serial, answer)
            await self.do(self.conversation.ended(serial))
        except SubscriberTooSlowError as error:
            await self._drop(serial, error.extensions.get("position", ""))
        except Exception as error:  # noqa: BLE001 - each operation ends with what went wrong
            await self.do(self.conversation.failed(serial, errors_of(error)))
        finally:
            self._tasks.pop(serial, None)
            self._listening.pop(serial, None)

    async def _tell(self, serial: int, answer: Mapping[str, Any]) -> None:
        if serial in self._listening:
            now = asyncio.get_running_loop().time()
            self._waiting[serial] = (now, self._listening[serial])
        try:
            await self.do(self.conversation.next(serial, answer))
        finally:
            self._waiting.pop(serial, None)

    def check_stuck(self) -> None:
        """Give up on a client that has not read for long."""
        last = asyncio.get_running_loop().time() - self.sockets.bounds.stuck_seconds
        for since, listening in list(self._waiting.values()):
            if since < last:
                listening.on_lost(listening.position)

    async def _answers(self, start: protocol.Start) -> AsyncGenerator[Mapping[str, Any], None]:
        ready = await asyncio.to_thread(self.sockets.schemas.current)
        bounds = self.sockets.bounds
        found = await asyncio.to_thread(checked, ready, start.query, start.operation, bounds.shape)
        viewer = self.viewer or Viewer(tenants=frozenset())
        if found.operation.operation is not OperationType.SUBSCRIPTION:
            asking = Asking(viewer=viewer, caps=bounds.caps)
            execute = partial(executed, ready, found, asking, start.variables or {})
            async with self.sockets.queries:
                result = await asyncio.to_thread(execute)
            errors = [told(each) for each in result.errors or ()]
            yield {"data": result.data, **({"errors": errors} if errors else {})}
            return
        listening = Listening(viewer=viewer, on_lost=self._losing(start.serial))
        self._listening[start.serial] = listening
        telling = Telling(ready.schema, found.document, found.operation, start.variables, listening)
        async with aclosing(telling.answers()) as answers:
            async for answer in answers:
                yield answer

    def _losing(self, serial: int) -> Callable[[str], None]:
        return lambda position: self._meanwhile(self._drop(serial, position))

    def refuse(self, reason: str) -> None:
        """End the connection, without waiting for a client that does not read."""
        self._meanwhile(self.do(self.conversation.refused(reason)))

    def _meanwhile(self, doing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(doing)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    async def _drop(self, serial: int, position: str) -> None:
        """Tell a client that is too slow its position, and end the connection, if it still can."""
        error = SubscriberTooSlowError(
            "Changes come faster than this client takes them; subscribe again with after: set to "
            "this position.",
            position=position,
        )
        failed = self.conversation.failed(serial, errors_of(error))
        closed = self.conversation.close(
            protocol.OVERLOADED, protocol.too_slow(error.name, position)
        )
        # A message that waits for the client to read was not sent, and the position is before it.
        for each in list(self._tasks):
            self._stop(each)
        with anyio.move_on_after(self.sockets.bounds.close_seconds):
            await self.do(failed)
        await self.do(closed)


def token_of(payload: Mapping[str, Any], header: str | None) -> str | None:
    """The bearer token of a `connection_init`, else of the request's header."""
    for name in ("Authorization", "authorization"):
        value = payload.get(name)
        if isinstance(value, str):
            return bearer(value)
    token = payload.get("token")
    return token if isinstance(token, str) else bearer(header)


def errors_of(error: Exception) -> Errors:
    """What a client is told about an operation that failed."""
    if isinstance(error, DocumentError):
        return [dict(each.formatted) for each in error.errors]
    if isinstance(error, RefusedOperationError):
        return [told(each) for each in error.errors]
    if isinstance(error, SubscriptionError):
        return [{"message": str(error), "extensions": dict(error.extensions)}]
    if isinstance(error, GraphQLError):
        return [told(error)]
    message, code = said(error)
    return [{"message": message, "extensions": {"code": code}}]
