"""Which port a service gets: the one asked for, the usual one, or a free one; and its namesake.

Services listen on 127.0.0.1. The name `localhost` also means ::1, and first: who listened there
would be sent what a client has for the service, its secret too.
"""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from iscp_dagster.local.services.settings import CLICKHOUSE, DAGSTER, HOST, SPARK
from iscp_dagster.model.errors import ConfigError

USUAL = {CLICKHOUSE: 8123, SPARK: 15002, DAGSTER: 3000}
VARIABLES = {
    CLICKHOUSE: "ISCP_CLICKHOUSE_PORT",
    SPARK: "ISCP_SPARK_PORT",
    DAGSTER: "ISCP_DAGSTER_PORT",
}
HOST_6 = "::1"
_NO_SUCH_HOST = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
_LAST_PORT = 65_535


@dataclass(frozen=True, kw_only=True)
class ChosenPort:
    """A service's port, and whether somebody `asked` for that one."""

    service: str
    port: int
    asked: bool = False


def choose(
    service: str, asked: int | None, environ: Mapping[str, str], taken: frozenset[int] = frozenset()
) -> ChosenPort:
    """The port for a service; ConfigError when a port that was asked for is taken."""
    asked = asked if asked is not None else _from_environment(service, environ)
    if asked is not None:
        if asked in taken or not is_free(asked):
            raise ConfigError(
                f"port {asked}, asked for {service}, is taken; "
                f"free it, or name another with --{service}-port or {VARIABLES[service]}"
            )
        return ChosenPort(service=service, port=asked, asked=True)
    usual = USUAL[service]
    if usual not in taken and is_free(usual):
        return ChosenPort(service=service, port=usual)
    return ChosenPort(service=service, port=free_port())


def _from_environment(service: str, environ: Mapping[str, str]) -> int | None:
    name = VARIABLES[service]
    text = environ.get(name)
    if not text:
        return None
    if not text.isdecimal() or not 0 < int(text) <= _LAST_PORT:
        raise ConfigError(f"{name}={text!r} is no port; give a number from 1 to {_LAST_PORT}")
    return int(text)


def is_free(port: int) -> bool:
    """Whether a server could listen on the port of the loopback address now, and alone."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    try:
        with kept([port]):
            return True
    except ConfigError:
        return False


def free_port() -> int:
    """A port of the loopback address that nobody listens on.

    While this process lives, Linux picks it for nobody else: its socket stays bound and never
    listens, so that a server that sets SO_REUSEADDR, as servers do, can. Elsewhere such a server
    would be refused, and the port is free for anybody until its own server has it.
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
        # Nobody closes it before the process ends.
        probe.detach()
    else:
        probe.close()
    return port


@contextmanager
def kept(ports: Iterable[int]) -> Iterator[None]:
    """Keep the ports of ::1 from everybody, and answer nobody there: a client goes on to 127.0.0.1.

    Raises ConfigError when one is taken. Without IPv6 there is nothing to keep.
    """
    with ExitStack() as held:
        for port in ports:
            try:
                place = held.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
                place.bind((HOST_6, port))
            except OSError as error:
                if error.errno not in _NO_SUCH_HOST:
                    raise ConfigError(f"port {port} of {HOST_6} is taken; free it") from error
        yield
