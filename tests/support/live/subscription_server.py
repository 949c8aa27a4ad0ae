"""A server of subscriptions on a free port, in a thread, and clients for it."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

import uvicorn
from starlette.routing import WebSocketRoute
from websockets.asyncio.client import connect

from asgi_guards import testing
from iscp_dagster.serve.access import OpenAccess
from iscp_dagster.serve.catalog import read_catalog
from iscp_dagster.serve.graph.schema_cache import SchemaCache
from iscp_dagster.serve.live.service import SubscriptionService
from iscp_dagster.serve.live.transport.socket import SocketBounds, SocketServer
from iscp_dagster.serve.web.app import GRAPHQL_PATH, GraphQLServerSettings, create_app
from support.live.changes_index import source_in

SOURCE = source_in("live")
BIG = "live_big"


@dataclass
class Running:
    port: int
    live: SubscriptionService
    sockets: SocketServer
    server: uvicorn.Server


@contextmanager
def serving(log, endpoint, *, access=None, bounds=None, **options):
    """Serve the changes of SOURCE."""
    live, access = SubscriptionService(log=log, **options), access or OpenAccess()
    schemas = SchemaCache(
        load=lambda: read_catalog([SOURCE], [endpoint], lambda *_: ()), subscribe=live.subscribe
    )
    sockets = SocketServer(schemas=schemas, access=access, bounds=bounds or SocketBounds())
    route = WebSocketRoute(GRAPHQL_PATH, sockets.serve_websocket)
    app = create_app(
        GraphQLServerSettings(
            schemas=schemas, access=access, routes=[route], background=[sockets.watch_connections]
        )
    )
    with testing.run_server(app, lifespan="on", ws_per_message_deflate=False) as served:
        yield Running(port=served.port, live=live, sockets=sockets, server=served.server)


class Client:
    """One websocket, with what it has received."""

    def __init__(self, socket):
        self.socket = socket

    async def say(self, **message):
        await self.socket.send(json.dumps(message))

    async def hear(self, seconds=10):
        return json.loads(await asyncio.wait_for(self.socket.recv(), seconds))

    async def subscribe(self, query, id_="1", **variables):
        payload = {"query": query, "variables": variables}
        await self.say(type="subscribe", id=id_, payload=payload)

    async def told(self, seconds=10):
        """Return the next message of a subscription."""
        message = await self.hear(seconds)
        assert message["type"] == "next", message
        (result,) = message["payload"]["data"].values()
        return result

    async def closed(self, seconds=10):
        """Return the code and the reason that the server closes with."""
        with suppress(Exception):
            while True:
                await asyncio.wait_for(self.socket.recv(), seconds)
        return self.socket.close_code, self.socket.close_reason


@asynccontextmanager
async def client(running, *, init=True, payload=None, **options):
    options = {"subprotocols": ["graphql-transport-ws"], **options}
    async with connect(f"ws://127.0.0.1:{running.port}{GRAPHQL_PATH}", **options) as socket:
        one = Client(socket)
        if init:
            await one.say(type="connection_init", **({"payload": payload} if payload else {}))
            assert (await one.hear())["type"] == "connection_ack"
        yield one
