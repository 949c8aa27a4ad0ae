"""The address of a Spark Connect server: `sc://host:port/;token=…`, as PySpark reads it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import ParseResult, unquote, urlparse

from iscp_dagster.model.errors import ConfigError

LOCAL = "localhost"
"""The only host that PySpark sends a token to without TLS."""
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105
"""Where a server finds the token that it requires; PySpark too, if the address has none."""
DEFAULT_PORT = 15002
SCHEME = "sc://"
_PLACE_END = re.compile(r"[/;?#]")
_NO_HEADERS = {"token", "use_ssl", "user_id", "user_agent", "session_id"}


@dataclass(frozen=True, kw_only=True)
class SparkRemote:
    """A server's place and request headers; neither its text nor an error shows the token."""

    host: str
    port: int
    secure: bool
    """Whether to connect over TLS."""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Sent with each request, including the bearer token."""

    @property
    def place(self) -> str:
        """Host and port as gRPC takes them; an IPv6 address is in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, address: str, environ: Mapping[str, str] = os.environ) -> SparkRemote:
        """Parse an address. Raises ConfigError, which shows no parameter, for an invalid one."""
        parts, port = _split_address(address)
        parameters = _parse_parameters(address, parts.params)
        token = parameters.get("token", environ.get(TOKEN_VARIABLE, ""))
        headers = [(name, value) for name, value in parameters.items() if name not in _NO_HEADERS]
        if token:
            headers.append(("authorization", f"Bearer {token}"))
        host = parts.hostname or ""
        tls = parameters.get("use_ssl", "").lower() == "true"
        return cls(
            host=host,
            port=port,
            secure=tls or (bool(token) and host != LOCAL),
            headers=tuple(headers),
        )


def add_token(address: str, token: str) -> str:
    """The address with the token added; unchanged if the token is empty."""
    return f"{address.rstrip('/')}/;token={token}" if token else address


def redact_address(address: str) -> str:
    """The scheme, host and port of an address: what follows or precedes them may be secret."""
    host_port = _PLACE_END.split(address.removeprefix(SCHEME))[0]
    return SCHEME + host_port.rpartition("@")[2]


def _split_address(address: str) -> tuple[ParseResult, int]:
    # As PySpark does: Python splits off parameters for http, but not for sc.
    parts = urlparse("http" + address.removeprefix("sc"))
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError:
        port = 0
    has_host = parts.hostname and port and ";" not in parts.netloc
    if not (address.startswith(SCHEME) and has_host and parts.path in {"", "/"}):
        raise ConfigError(
            f"SPARK_REMOTE ({redact_address(address)}) is malformed; write it as "
            "sc://host:port[/;name=value;…], and a `/` within a value as %2F."
        )
    return parts, port


def _parse_parameters(address: str, text: str) -> dict[str, str]:
    pairs = [part.split("=") for part in text.split(";") if text]
    for number, pair in enumerate(pairs, 1):
        if len(pair) != 2:  # noqa: PLR2004
            raise ConfigError(
                f"Parameter {number} of SPARK_REMOTE ({redact_address(address)}) is not "
                "name=value; write a `=` within a value as %3D."
            )
    return {name: unquote(value) for name, value in pairs}
