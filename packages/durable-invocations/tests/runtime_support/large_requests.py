"""A request that no server takes in."""

import select
import socket

LARGE = b"x" * (20 * 1024 * 1024)


def status_of_large(url, path):
    """The status for a client that has the answer before it has sent the body, and sends it."""
    port = int(url.rsplit(":", 1)[1])
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(LARGE)}\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode())
        assert select.select([client], [], [], 30)[0]
        client.sendall(LARGE)
        return int(client.recv(4096).split()[1])
