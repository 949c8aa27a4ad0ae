"""Real servers of ASGI apps in threads of the test: uvicorn, and hypercorn with HTTP/2."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import hypercorn.asyncio
from hypercorn.config import Config

from asgi_guards.testing import run_server

SECONDS = 60


@dataclass
class Served:
    url: str
    stop: object


def bound():
    """A socket that listens, and its port."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)
    return listening, listening.getsockname()[1]


@contextmanager
def uvicorn_of(app, **options):
    """HTTP/1.1: the address of a server that runs until the block ends or `stop()`."""
    with ExitStack() as stack:
        yield Served(stack.enter_context(run_server(app, **options)).url, stack.close)


@contextmanager
def hypercorn_of(app, *, certificate=None, **options):
    """HTTP/2 without TLS, or with it: the address of a server that runs until the block ends."""
    listening, port = bound()
    config = Config()
    config.bind = [f"fd://{listening.detach()}"]
    config.errorlog = None
    config.graceful_timeout = 1
    if certificate is not None:
        config.certfile, config.keyfile = certificate
    for name, value in options.items():
        setattr(config, name, value)
    loop = asyncio.new_event_loop()
    stopping = asyncio.Event()

    async def run_and_cancel():
        await hypercorn.asyncio.serve(app, config, shutdown_trigger=stopping.wait, mode="asgi")
        remaining = asyncio.all_tasks() - {asyncio.current_task()}
        for task in remaining:
            task.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)
        # Transports are closed by what the loop calls next.
        await asyncio.sleep(0)

    def serve():
        asyncio.set_event_loop(loop)
        try:
            # hypercorn 0.18 has a KeyError for data of a stream that it has answered already.
            with suppress(Exception):
                loop.run_until_complete(run_and_cancel())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    def stop():
        if thread.is_alive():
            loop.call_soon_threadsafe(stopping.set)
        thread.join(SECONDS)
        assert not thread.is_alive()

    scheme = "http" if certificate is None else "https"
    try:
        yield Served(f"{scheme}://127.0.0.1:{port}", stop)
    finally:
        stop()


def run(awaitable, seconds=SECONDS):
    """Run to the end in a new event loop, within `seconds`."""

    async def bounded():
        return await asyncio.wait_for(awaitable, seconds)

    return asyncio.run(bounded())
