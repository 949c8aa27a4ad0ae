"""Websockets with the subprotocol graphql-transport-ws: does what a `Conversation` decides."""

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

from iscp_dagster.serve.access import Access, UnauthenticatedError, Viewer, parse_bearer
from iscp_dagster.serve.graph.client_errors import format_error, log_and_describe_error
from iscp_dagster.serve.graph.documents import DocumentError, DocumentLimits, validate_document
from iscp_dagster.serve.graph.executing import execute_query
from iscp_dagster.serve.graph.schema_cache import SchemaCache
from iscp_dagster.serve.live.errors import SubscriberTooSlowError, SubscriptionError
from iscp_dagster.serve.live.service import SubscriberContext
from iscp_dagster.serve.live.transport import protocol
from iscp_dagster.serve.live.transport.operations import (
    RefusedOperationError,
    SubscriptionExecution,
)
from iscp_dagster.serve.reads.caps import Caps, RequestContext

LOGGER = logging.getLogger(__name__)
_THREADS = ThreadPoolExecutor(max_workers=8, thread_name_prefix="iscp-tokens")
"""Only for tokens: long reads must not delay new connections."""
Errors = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class SocketBounds:
    """The limits of the server's websockets."""

    connections: int = 2_000
    operations: int = 100
    """Of one connection, at a time."""
    message_bytes: int = 256 * 1024
    """Bytes of a client's message."""
    init_seconds: float = 10.0
    """How long a connection may take to send `connection_init`."""
    stuck_seconds: float = 30.0
    """How long a message may wait for the client to read those before it."""
    close_seconds: float = 10.0
    """How long to try to send the reason of a close to a client that does not read."""
    check_seconds: float = 2.0
    """How often tokens are looked up again."""
    max_running: int = 8
    """Queries by websocket that are executed at the same time."""
    document_limits: DocumentLimits = field(default_factory=DocumentLimits)
    caps: Caps = field(default_factory=Caps)


@dataclass(kw_only=True)
class SocketServer:
    """All websockets of a server. `watch_connections` must run while the application does."""

    schemas: SchemaCache
    access: Access
    bounds: SocketBounds = field(default_factory=SocketBounds)
    connections: set[SocketConnection] = field(default_factory=set, init=False)
    queries: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.queries = asyncio.Semaphore(self.bounds.max_running)

    async def serve_websocket(self, websocket: WebSocket) -> None:
        """Serve one connection to its end."""
        connection = SocketConnection(sockets=self, websocket=websocket)
        if protocol.SUBPROTOCOL not in websocket.scope.get("subprotocols", ()):
            await websocket.accept()
            await connection.close(protocol.NOT_ACCEPTABLE, "Subprotocol not acceptable")
            return
        await websocket.accept(subprotocol=protocol.SUBPROTOCOL)
        if len(self.connections) >= self.bounds.connections:
            await connection.close(
                protocol.OVERLOADED, "This server accepts no more connections now"
            )
            return
        self.connections.add(connection)
        try:
            await connection.serve()
        finally:
            self.connections.discard(connection)

    @asynccontextmanager
    async def watch_connections(self) -> AsyncIterator[None]:
        """Look up tokens again while it runs; at the end, have clients reconnect."""
        watch = asyncio.create_task(self._poll_connections())
        try:
            yield
        finally:
            watch.cancel()
            closings = [
                connection.close(protocol.RESTART, "The server restarts")
                for connection in self.connections
            ]
            await asyncio.gather(*closings, return_exceptions=True)

    async def _poll_connections(self) -> None:
        token_check = asyncio.create_task(self.end_unauthorized_connections())
        try:
            while True:
                await asyncio.sleep(self.bounds.check_seconds)
                for connection in self.connections:
                    connection.drop_stuck_client()
                # A user's function may take long; slow clients are dropped meanwhile.
                if token_check.done():
                    token_check = asyncio.create_task(self.end_unauthorized_connections())
        finally:
            token_check.cancel()

    async def end_unauthorized_connections(self) -> None:
        """End the connections whose token was withdrawn, or names other tenants now."""
        if self.access.is_open:
            return
        tokens = {
            connection.token for connection in self.connections if connection.viewer is not None
        }
        viewers_by_token = dict(
            zip(tokens, await asyncio.gather(*map(self._find_viewers, tokens)), strict=True)
        )
        for connection in list(self.connections):
            viewers = viewers_by_token.get(connection.token)
            if connection.viewer is not None and viewers and connection.viewer not in viewers:
                connection.refuse("The token was withdrawn")

    async def identify_viewer(self, token: str | None) -> Viewer:
        """The token's viewer. Raises what the access raises."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_THREADS, self.access.identify_viewer, token)

    async def _find_viewers(self, token: str | None) -> Sequence[Viewer | None]:
        """The token's current viewer, or None; empty if that is unknown now."""
        try:
            return [await self.identify_viewer(token)]
        except UnauthenticatedError:
            return [None]
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            LOGGER.warning("Tokens cannot be looked up now: %s", type(error).__name__)
            return []


@dataclass(eq=False, kw_only=True)
class SocketConnection:
    """One client's connection."""

    sockets: SocketServer
    websocket: WebSocket
    conversation: protocol.Conversation = field(init=False)
    viewer: Viewer | None = field(default=None, init=False)
    token: str | None = field(default=None, init=False)
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _waiting: dict[int, tuple[float, SubscriberContext]] = field(default_factory=dict, init=False)
    """Since when a subscription's message waits to be sent, by serial."""
    _subscribers: dict[int, SubscriberContext] = field(default_factory=dict, init=False)
    _background_tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _ended: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        self.conversation = protocol.Conversation(most=self.sockets.bounds.operations)

    async def serve(self) -> None:
        """Handle messages until the connection ends."""
        receiving = asyncio.create_task(self._receive_messages())
        ended = asyncio.create_task(self._ended.wait())
        timing = asyncio.create_task(self._wait_for_init())
        try:
            await asyncio.wait({receiving, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.conversation.close(protocol.RESTART, "")
            tasks = [receiving, ended, timing, *self._tasks.values(), *self._background_tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive_messages(self) -> None:
        while True:
            message = await self.websocket.receive()
            if message["type"] != "websocket.receive":
                return
            text = message.get("text")
            frame = message.get("bytes") or b"" if text is None else text
            if len(frame) > self.sockets.bounds.message_bytes:
                max_bytes = f"{self.sockets.bounds.message_bytes:,}"
                await self.close(protocol.TOO_BIG, f"A message has at most {max_bytes} bytes")
            else:
                await self.perform_actions(self.conversation.handle_frame(frame))

    async def _wait_for_init(self) -> None:
        await asyncio.sleep(self.sockets.bounds.init_seconds)
        await self.perform_actions(self.conversation.expire_init())

    async def close(self, code: int, reason: str) -> None:
        """End every operation and the connection."""
        await self.perform_actions(self.conversation.close(code, reason))

    async def perform_actions(self, actions: Sequence[protocol.SocketAction]) -> None:
        """Carry out what the conversation decided."""
        for action in actions:
            if isinstance(action, protocol.SendMessage):
                await self._send_message(action.message)
            elif isinstance(action, protocol.CloseSocket):
                await self._close_socket(action)
            elif isinstance(action, protocol.AdmitClient):
                await self._identify_client(action.payload)
            elif isinstance(action, protocol.StartOperation):
                self._tasks[action.serial] = asyncio.create_task(self._run_operation(action))
            else:
                self._stop_operation(action.serial)

    async def _send_message(self, message: Mapping[str, Any]) -> None:
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
        # A client that is gone ends `receive` too.
        with suppress(WebSocketDisconnect, RuntimeError):
            await self.websocket.send_text(text)

    async def _close_socket(self, action: protocol.CloseSocket) -> None:
        with (
            suppress(WebSocketDisconnect, RuntimeError),
            anyio.move_on_after(self.sockets.bounds.close_seconds),
        ):
            await self.websocket.close(action.code, action.reason)
        self._ended.set()

    def _stop_operation(self, serial: int) -> None:
        task = self._tasks.pop(serial, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def _identify_client(self, payload: Mapping[str, Any]) -> None:
        self.token = find_token(payload, self.websocket.headers.get("authorization"))
        try:
            self.viewer = await self.sockets.identify_viewer(self.token)
        except UnauthenticatedError:
            await self.perform_actions(self.conversation.refuse_connection())
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            log_and_describe_error(error)
            await self.perform_actions(self.conversation.refuse_connection())
        else:
            await self.perform_actions(self.conversation.accept_connection())

    async def _run_operation(self, start: protocol.StartOperation) -> None:
        """Run one operation to its end."""
        serial = start.serial
        try:
            async with aclosing(self._stream_results(start)) as answers:
                async for answer in answers:
                    await self._send_result(serial, answer)
            await self.perform_actions(self.conversation.complete_operation(serial))
        except SubscriberTooSlowError as error:
            await self._drop_slow_client(serial, error.extensions.get("position", ""))
        except Exception as error:  # noqa: BLE001 - each operation ends with what went wrong
            await self.perform_actions(
                self.conversation.fail_operation(serial, format_errors(error))
            )
        finally:
            self._tasks.pop(serial, None)
            self._subscribers.pop(serial, None)

    async def _send_result(self, serial: int, answer: Mapping[str, Any]) -> None:
        if serial in self._subscribers:
            now = asyncio.get_running_loop().time()
            self._waiting[serial] = (now, self._subscribers[serial])
        try:
            await self.perform_actions(self.conversation.send_result(serial, answer))
        finally:
            self._waiting.pop(serial, None)

    def drop_stuck_client(self) -> None:
        """Drop a client that has not read for long."""
        threshold = asyncio.get_running_loop().time() - self.sockets.bounds.stuck_seconds
        for since, listening in list(self._waiting.values()):
            if since < threshold:
                listening.on_lost(listening.position)

    async def _stream_results(
        self, start: protocol.StartOperation
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        ready = await asyncio.to_thread(self.sockets.schemas.get_schema)
        bounds = self.sockets.bounds
        document = await asyncio.to_thread(
            validate_document, ready, start.query, start.operation, bounds.document_limits
        )
        viewer = self.viewer or Viewer(tenants=frozenset())
        if document.operation.operation is not OperationType.SUBSCRIPTION:
            asking = RequestContext(viewer=viewer, caps=bounds.caps)
            execute = partial(execute_query, ready, document, asking, start.variables or {})
            async with self.sockets.queries:
                result = await asyncio.to_thread(execute)
            errors = [format_error(error) for error in result.errors or ()]
            yield {"data": result.data, **({"errors": errors} if errors else {})}
            return
        listening = SubscriberContext(viewer=viewer, on_lost=self._make_lost_callback(start.serial))
        self._subscribers[start.serial] = listening
        telling = SubscriptionExecution(
            ready.schema, document.document, document.operation, start.variables, listening
        )
        async with aclosing(telling.stream_results()) as answers:
            async for answer in answers:
                yield answer

    def _make_lost_callback(self, serial: int) -> Callable[[str], None]:
        return lambda position: self._spawn_task(self._drop_slow_client(serial, position))

    def refuse(self, reason: str) -> None:
        """End the connection, without waiting for a client that does not read."""
        self._spawn_task(self.perform_actions(self.conversation.refuse_connection(reason)))

    def _spawn_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    async def _drop_slow_client(self, serial: int, position: str) -> None:
        """Send a client that is too slow its position, if possible, and end the connection."""
        error = SubscriberTooSlowError(
            "Changes come faster than this client takes them; subscribe again with after: set to "
            "this position.",
            position=position,
        )
        fail_actions = self.conversation.fail_operation(serial, format_errors(error))
        close_actions = self.conversation.close(
            protocol.OVERLOADED, protocol.format_slow_reason(error.name, position)
        )
        # A message that waits for the client to read was not sent, and the position is before it.
        for running_serial in list(self._tasks):
            self._stop_operation(running_serial)
        with anyio.move_on_after(self.sockets.bounds.close_seconds):
            await self.perform_actions(fail_actions)
        await self.perform_actions(close_actions)


def find_token(payload: Mapping[str, Any], header: str | None) -> str | None:
    """The bearer token of a `connection_init`, else of the request's header."""
    for name in ("Authorization", "authorization"):
        value = payload.get(name)
        if isinstance(value, str):
            return parse_bearer(value)
    token = payload.get("token")
    return token if isinstance(token, str) else parse_bearer(header)


def format_errors(error: Exception) -> Errors:
    """What a client gets about a failed operation."""
    if isinstance(error, DocumentError):
        return [dict(graphql_error.formatted) for graphql_error in error.errors]
    if isinstance(error, RefusedOperationError):
        return [format_error(graphql_error) for graphql_error in error.errors]
    if isinstance(error, SubscriptionError):
        return [{"message": str(error), "extensions": dict(error.extensions)}]
    if isinstance(error, GraphQLError):
        return [format_error(error)]
    message, code = log_and_describe_error(error)
    return [{"message": message, "extensions": {"code": code}}]
