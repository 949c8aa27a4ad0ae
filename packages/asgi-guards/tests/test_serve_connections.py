"""How long servers keep idle connections."""

import httpx

from asgi_guards.connections import make_uvicorn_options


def test_clients_give_up_an_idle_connection_before_the_server_does():
    """Else a request is lost that is sent while the server closes."""
    assert make_uvicorn_options()["timeout_keep_alive"] > 2 * httpx.Limits().keepalive_expiry
