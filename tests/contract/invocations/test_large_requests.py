"""What the servers answer to a request that is too large, over a real connection."""

from __future__ import annotations

import select
import socket

from asgiservers import uvicorn_of
from liveruntime import running

from iscp_dagster.serve.catalog import Catalog
from iscp_dagster.serve.graph.schemas import Schemas
from iscp_dagster.serve.web.app import Settings, create_app

LARGE = b"x" * (20 * 1024 * 1024)


def status_of_large(url, path):
    """Return the status for a client that sends more once it is answered, and reads in the end."""
    port = int(url.rsplit(":", 1)[1])
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(LARGE)}\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode())
        assert select.select([client], [], [], 30)[0], "it is answered before it has sent the body"
        client.sendall(LARGE)
        return int(client.recv(4096).split()[1])


def test_the_servers_of_queries_and_of_invocations_take_in_what_is_too_large(tmp_path):
    queries = create_app(Settings(schemas=Schemas(load=Catalog), environ={}))
    with uvicorn_of(queries) as server:
        assert status_of_large(server.url, "/graphql") == 413
    with running(tmp_path) as runtime:
        assert status_of_large(runtime.url, "/Nobody/has/it") == 404
        assert status_of_large(runtime.url, "/admin/services") == 405
