"""The server looks up tokens of open connections again, whatever clients and functions do."""

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


def connect(sockets, token):
    connection = SocketConnection(sockets=sockets, websocket=Deaf())
    connection.token, connection.viewer = token, ACME
    sockets.connections.add(connection)
    return connection


async def test_clients_that_do_not_read_do_not_put_off_the_end_of_others():
    tokens = Tokens(withdrawn={"old"})
    sockets = SocketServer(schemas=None, access=tokens)
    ending = [connect(sockets, "old") for _ in range(3)]
    staying = connect(sockets, "new")
    await asyncio.wait_for(sockets.end_unauthorized_connections(), 5)
    await until(lambda: all(each.websocket.closed for each in ending))
    assert [[code for code, _ in each.websocket.closed] for each in ending] == [[4403]] * 3
    assert staying.websocket.closed == []
    assert sorted(tokens.asked) == ["new", "old"]


async def test_readings_that_take_long_do_not_put_off_who_connects():
    go, loop = threading.Event(), asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as only_thread:
        loop.set_default_executor(only_thread)
        reading = loop.run_in_executor(None, go.wait, 20)
        sockets = SocketServer(schemas=None, access=Tokens())
        connection = SocketConnection(sockets=sockets, websocket=Deaf())
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
    slow = connect(sockets, "one")
    async with sockets.watch_connections():
        await until(lambda: tokens.asked)
        context = SubscriberContext(viewer=ACME, on_lost=lost.append)
        slow._waiting[1] = (asyncio.get_running_loop().time() - 1, context)
        await until(lambda: lost)
        tokens.go.set()
        slow.websocket.close = lambda *_: asyncio.sleep(0)
