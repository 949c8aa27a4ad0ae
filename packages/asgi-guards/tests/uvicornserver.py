"""A real uvicorn in a thread of the test."""

import socket
import threading
from contextlib import contextmanager

import uvicorn

SECONDS = 60


@contextmanager
def uvicorn_of(app, **options):
    """Give the address of a server that runs until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        settings = {"log_level": "error", "lifespan": "off", "timeout_graceful_shutdown": 1}
        server = uvicorn.Server(uvicorn.Config(app, **(options | settings)))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(SECONDS)
            assert not thread.is_alive()
