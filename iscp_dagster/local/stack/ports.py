"""Chooses each service's port (the requested, the usual or a free one) and blocks it on ::1.

Services listen on 127.0.0.1, but `localhost` means ::1 first: a program that listened there would
receive what clients send to the service, secrets included.
"""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from iscp_dagster.local.services.settings import (
    CLICKHOUSE,
    DAGSTER,
    GRAPHQL,
    HOST,
    INVOCATIONS,
    SPARK,
)
from iscp_dagster.model.errors import ConfigError

USUAL = {CLICKHOUSE: 8123, SPARK: 15002, DAGSTER: 3000, GRAPHQL: 4000, INVOCATIONS: 4080}
VARIABLES = {
    CLICKHOUSE: "ISCP_CLICKHOUSE_PORT",
    SPARK: "ISCP_SPARK_PORT",
    DAGSTER: "ISCP_DAGSTER_PORT",
    GRAPHQL: "ISCP_GRAPHQL_PORT",
    INVOCATIONS: "ISCP_INVOCATIONS_PORT",
}
HOST_6 = "::1"
_NO_SUCH_HOST = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
_LAST_PORT = 65_535


@dataclass(frozen=True, kw_only=True)
class ChosenPort:
    """A service's port; `requested` if the user requested it."""

    service: str
    port: int
    requested: bool = False


def choose(
    service: str,
    requested: int | None,
    environ: Mapping[str, str],
    taken: frozenset[int] = frozenset(),
) -> ChosenPort:
    """The port for a service; ConfigError when a requested port is invalid or taken."""
    requested = requested if requested is not None else _read_port_variable(service, environ)
    if requested is not None:
        if requested in taken or not is_free(requested):
            raise ConfigError(
                f"port {requested}, requested for {service}, is taken; "
                f"free it, or name another with --{service}-port or {VARIABLES[service]}"
            )
        return ChosenPort(service=service, port=requested, requested=True)
    usual = USUAL[service]
    if usual not in taken and is_free(usual):
        return ChosenPort(service=service, port=usual)
    return ChosenPort(service=service, port=find_free_port())


def _read_port_variable(service: str, environ: Mapping[str, str]) -> int | None:
    name = VARIABLES[service]
    text = environ.get(name)
    if not text:
        return None
    if not text.isdecimal() or not 0 < int(text) <= _LAST_PORT:
        raise ConfigError(f"{name}={text!r} is not a port; give a number from 1 to {_LAST_PORT}")
    return int(text)


def is_free(port: int) -> bool:
    """Whether the port is free on 127.0.0.1 and ::1, so that a server could listen on it now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    try:
        with block_ipv6_ports([port]):
            return True
    except ConfigError:
        return False


def find_free_port() -> int:
    """A free port of the loopback address.

    On Linux a socket stays bound to it, without listening, until this process ends: the kernel
    then assigns the port to no other program, but a server can listen on it if it sets
    SO_REUSEADDR, as servers do. Elsewhere the bound socket would block the server, so it is closed,
    and another program may take the port first.
    """
    while True:
        probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        if is_free(port):
            break
        probe.close()
    if sys.platform == "linux":
        # Keep the socket open until the process ends.
        probe.detach()
    else:
        probe.close()
    return port


@contextmanager
def block_ipv6_ports(ports: Iterable[int]) -> Iterator[None]:
    """Bind the ports on ::1, so that no program listens there and clients try 127.0.0.1 next.

    Raises ConfigError when one is taken. Without IPv6 there is nothing to bind.
    """
    with ExitStack() as sockets:
        for port in ports:
            try:
                blocker = sockets.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
                blocker.bind((HOST_6, port))
            except OSError as error:
                if error.errno not in _NO_SUCH_HOST:
                    raise ConfigError(f"port {port} on {HOST_6} is taken; free it") from error
        yield
