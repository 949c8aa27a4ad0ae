"""Which requests a server on the loopback address answers: those that no foreign web page sent.

A browser sends requests of any page to any address, also this machine's; what it adds to them
tells: `Origin` and `Sec-Fetch-Site` name the page (Fetch standard, Fetch Metadata), and `Host`
names what the page called the address (DNS rebinding gives this machine's address another name).
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.websockets import WebSocketClose

from iscp_dagster.model.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Receive, Scope, Send

HOSTS_VARIABLE = "ISCP_ALLOWED_HOSTS"
_OWN_SITES = ("same-origin", "none")
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_AUTHORITY = re.compile(
    r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[^:@/\[\]]+))(?::(?P<port>[0-9]{1,5}))?"
)
_FORBIDDEN = 403


@dataclass(frozen=True, kw_only=True)
class Admission:
    """`hosts` are names, `name` or `name:port`, besides the address served; `origins` are pages.

    An origin is `scheme://host[:port]`. With `links` a person may follow a link of another page to
    a page of this server, as to a user interface; a query path is not to be linked to.
    """

    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    links: bool = False

    def refusal(self, scope: Scope) -> str:
        """Why a request is refused, with the remedy; empty when it is let in."""
        headers = Headers(scope=scope)
        named = headers.getlist("host")
        if len(named) > 1 or not all(self._serves(host, scope) for host in named):
            return (
                f"The Host {_shown(named)} is not the address of this server; ask for the address "
                f"that it listens on, or add the name to {HOSTS_VARIABLE}."
            )
        origins = headers.getlist("origin")
        if any(each in self.origins for each in origins) and len(origins) == 1:
            return ""
        if not all(_is_own(origin, named) for origin in origins):
            return f"The Origin {_shown(origins)} is not allowed to use this server."
        sites = headers.getlist("sec-fetch-site")
        if all(site in _OWN_SITES for site in sites) or (self.links and _is_link(scope, headers)):
            return ""
        return f"A request of another web page (Sec-Fetch-Site: {_shown(sites)}) is not allowed."

    def _serves(self, host: str, scope: Scope) -> bool:
        """Any port will do: a forwarded one is another, and a rebound name is none of ours."""
        name, port = _split(host, _DEFAULT_PORTS[scope["scheme"]])
        if name in self.hosts or f"{name}:{port}" in self.hosts:
            return True
        address = (scope.get("server") or ("",))[0]
        return bool(name) and (name == address or (name == "localhost" and _loops(address)))


@dataclass(frozen=True)
class Guard:
    """The ASGI middleware: what is refused is answered with 403 before any of it is read."""

    app: ASGIApp
    admission: Admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = self.admission.refusal(scope) if scope["type"] in {"http", "websocket"} else ""
        if not reason:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            # Before it is accepted, a closed websocket is answered with 403 (ASGI doc).
            await WebSocketClose()(scope, receive, send)
        else:
            headers = {"Connection": "close"}
            refused = PlainTextResponse(f"{reason}\n", status_code=_FORBIDDEN, headers=headers)
            await refused(scope, receive, send)


def names_in(text: str) -> frozenset[str]:
    """The names of a setting, parted by spaces or commas, as they are compared."""
    return frozenset(name.lower().rstrip(".") for name in re.split(r"[\s,]+", text) if name)


def origins_in(text: str) -> frozenset[str]:
    """The origins of a setting. Raises ConfigError for what is none, `*` and `null` included."""
    found = names_in(text)
    for origin in found:
        parts = urlsplit(origin)
        if parts.scheme not in {"http", "https"} or origin != f"{parts.scheme}://{parts.netloc}":
            raise ConfigError(
                f"the allowed origin {origin!r} is no origin; write scheme://host[:port]"
            )
    return found


def allowed_hosts(environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The names that `ISCP_ALLOWED_HOSTS` adds to the address served."""
    return names_in(environ.get(HOSTS_VARIABLE, ""))


def _is_own(origin: str, hosts: list[str]) -> bool:
    """Whether the page came from this very server; its Host has been looked at before."""
    parts = urlsplit(origin)
    default = _DEFAULT_PORTS.get(parts.scheme)
    if default is None or len(hosts) != 1:
        return False
    # A proxy may speak https to the page and http to this server.
    return _split(parts.netloc, default) == _split(hosts[0], default)


def _is_link(scope: Scope, headers: Headers) -> bool:
    """Whether a person follows a link to a page: it is shown to them, and no page can read it."""
    return (
        scope["type"] == "http"
        and scope["method"] == "GET"
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
        and "graphql" not in scope["path"].split("/")
    )


def _split(host: str, default: int) -> tuple[str, int]:
    """Name and port of a Host header; an empty name for what is no such header."""
    found = _AUTHORITY.fullmatch(host.lower())
    if found is None:
        return "", 0
    return (found["name"] or found["v6"]).rstrip("."), int(found["port"] or default)


def _loops(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _shown(values: list[str]) -> str:
    return ", ".join(repr(value) for value in values)
