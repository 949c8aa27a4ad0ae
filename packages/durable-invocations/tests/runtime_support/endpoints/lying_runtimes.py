"""Servers that are no runtime of invocations, for a client that takes them for one."""

import socket
import threading
from contextlib import contextmanager, suppress

from durable_invocations.client.client import Client
from runtime_support.endpoints.asgi_servers import bound

LIES = {
    "a page": b"<html>hello</html>",
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "an empty object": b"{}",
    "depth": b"[" * 200_000,
    "other types": b'{"services":5,"deployments":[1],"invocations":"x","changed":1,'
    b'"invocationId":5}',
    "no UTF-8": b'{"services":"\xff"}',
}


@contextmanager
def lying(answer, drip=b""):
    """The address of a server that answers any request so, then sends `drip` without end."""
    listening, port = bound()
    ended = threading.Event()

    def talk(connection):
        with connection, suppress(OSError):
            connection.recv(65_536)
            connection.sendall(answer)
            while drip and not ended.wait(0.01):
                connection.sendall(drip)
            # Unread bytes of the request would reset the connection.
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass

    def serve():
        with suppress(OSError):
            while True:
                threading.Thread(target=talk, args=listening.accept()[:1], daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        ended.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


@contextmanager
def lied_to(answer, drip=b"", **options):
    """A client of such a server."""
    with lying(answer, drip) as url, Client(url, **options) as client:
        yield client


def http(body, status="200 OK", head=""):
    length = f"content-length: {len(body)}\r\nconnection: close\r\n{head}\r\n"
    return f"HTTP/1.1 {status}\r\n{length}".encode() + body
