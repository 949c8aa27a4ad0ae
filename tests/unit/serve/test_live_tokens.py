"""Tokens of open connections are looked up again, whatever their clients and the function do."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from iscp_dagster.serve.access import UnauthenticatedError, Viewer
from iscp_dagster.serve.live.service import SubscriberContext
from iscp_dagster.serve.live.transport.socket import SocketBounds, SocketConnection, SocketServer
from support.live.view_history import until

ACME = Viewer(tenants=frozenset({"acme"}))


class Deaf:
    """A websocket whose client reads nothing, not even that it is closed."""

    def __init__(self):
        self.closed = []

    async def close(self, code, reason):
        self.closed.append((code, reason))
        await asyncio.Event().wait()


class Tokens:
    is_open = False

    def __init__(self, withdrawn=()):
        self.withdrawn, self.asked, self.go = set(withdrawn), [], threading.Event()
        self.go.set()

    def identify_viewer(self, token):
        self.asked.append(token)
        self.go.wait(20)
        if token in self.withdrawn:
            raise UnauthenticatedError("unknown")
        return ACME


def connected(sockets, token):
    connection = SocketConnection(sockets=sockets, websocket=Deaf())
    connection.token, connection.viewer = token, ACME
    sockets.connections.add(connection)
    return connection


async def test_clients_that_do_not_read_do_not_put_off_the_end_of_others():
    tokens = Tokens(withdrawn={"old"})
    sockets = SocketServer(schemas=None, access=tokens)
    ending = [connected(sockets, "old") for _ in range(3)]
    staying = connected(sockets, "new")
    await asyncio.wait_for(sockets.check_tokens(), 5)
    told = [(4403, "The token was withdrawn")]
    await until(lambda: all(each.websocket.closed == told for each in ending))
    assert staying.websocket.closed == []
    assert sorted(tokens.asked) == ["new", "old"]


async def test_readings_that_take_long_do_not_put_off_who_connects():
    go, loop = threading.Event(), asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as few:
        loop.set_default_executor(few)
        reading = loop.run_in_executor(None, go.wait, 20)
        connection = SocketConnection(
            sockets=SocketServer(schemas=None, access=Tokens()), websocket=Deaf()
        )
        connection.websocket.headers = {}
        try:
            connecting = asyncio.create_task(connection._identify_client({"token": "one"}))
            await until(lambda: connection.viewer == ACME)
        finally:
            go.set()
            connecting.cancel()
            await asyncio.gather(reading, connecting, return_exceptions=True)


async def test_a_function_that_hangs_does_not_keep_slow_clients():
    tokens = Tokens()
    tokens.go.clear()
    bounds = SocketBounds(stuck_seconds=0.0, check_seconds=0.01)
    sockets = SocketServer(schemas=None, access=tokens, bounds=bounds)
    lost = []
    slow = connected(sockets, "one")
    async with sockets.watch_connections():
        await until(lambda: tokens.asked)
        listening = SubscriberContext(viewer=ACME, on_lost=lost.append)
        slow._waiting[1] = (asyncio.get_running_loop().time() - 1, listening)
        await until(lambda: lost)
        tokens.go.set()
        slow.websocket.close = lambda *_: asyncio.sleep(0)
