"""One request and its response, over any version of HTTP."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from durable_invocations.addresses import mask_secrets
from durable_invocations.errors import ConfigError, UnavailableError

MOST_HEAD = 65_536
"""Bytes of a response's status line and headers."""
_PORTS = {"http": 80, "https": 443}
_PLAIN = re.compile(r"[!-~]+")
_SECRET = re.compile(r"[0-9a-f]{32,}")
"""A digest in a path, which serves as a token."""


class DeploymentUnreachableError(UnavailableError):
    """A service deployment does not answer, or aborted its answer; it is tried again."""

    code = 1_120


class NotHttp2Error(DeploymentUnreachableError):
    """The server at the address does not speak HTTP/2."""

    code = 1_121


class StaleError(DeploymentUnreachableError):
    """A connection ended before the request was read; another one may take it."""

    code = 1_122


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What connections connect to: host, port and TLS."""

    host: str
    port: int
    tls: bool

    @property
    def authority(self) -> str:
        """The Host header: without the scheme's default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def scheme(self) -> str:
        return "https" if self.tls else "http"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


@dataclass(frozen=True, kw_only=True)
class Address:
    """A service deployment's address: its origin, and the path before `/invoke` and `/discover`."""

    origin: Origin
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address of `http://host:port/prefix`. Raises ConfigError."""
        try:
            parts = urlsplit(url)
            scheme, host, port = parts.scheme, parts.hostname, parts.port
        except ValueError:
            scheme, host, port = "", None, None
        unusable = "@" in url or "?" in url or "#" in url or not _PLAIN.fullmatch(url)
        if scheme not in _PORTS or not host or unusable:
            raise ConfigError(
                f"The address {mask_secrets(url)!r} is not the address of a service deployment; "
                "give http://host:port or https://host:port, with a path if it has one."
            )
        origin = Origin(host=host, port=port or _PORTS[scheme], tls=scheme == "https")
        return cls(origin=origin, prefix=parts.path.rstrip("/"))

    @property
    def url(self) -> str:
        return f"{self.origin}{self.prefix}"

    def __str__(self) -> str:
        """For messages and logs: without the secret in the path."""
        return f"{self.origin}{_SECRET.sub('…', self.prefix)}"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What opens an exchange; `path` follows the address's prefix."""

    method: str
    path: str
    headers: Sequence[tuple[str, str]] = field(default=())


@dataclass(frozen=True, kw_only=True)
class Head:
    """A response's status and headers; names are in lower case."""

    status: int
    headers: Mapping[str, str]


class Exchange(Protocol):
    """One running request. Methods raise DeploymentUnreachableError.

    The caller must `close` it; closing is idempotent.
    """

    async def send(self, data: bytes, *, end: bool = False) -> None:
        """Send a part of the body once the peer accepts it; `end` marks the last."""

    async def read_head(self) -> Head:
        """Wait for the response's head. Idempotent."""

    async def receive(self) -> bytes:
        """Wait for the next part of the response's body; empty at its end."""

    def abort(self, why: DeploymentUnreachableError) -> None:
        """Abort it now; pending calls raise this error."""

    async def close(self) -> None:
        """Return its connection to the pool, or abort it."""
