"""Refuses requests of foreign web pages to a server on the loopback address.

A browser sends any page's requests to any address, including this machine's, but adds headers:
`Origin` and `Sec-Fetch-Site` say where the page is from (Fetch standard, Fetch Metadata), and
`Host` is the name that the page used (DNS rebinding gives this machine's address another name).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.websockets import WebSocketClose

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import ASGIApp, Receive, Scope, Send

_OWN_SITES = ("same-origin", "none")
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_AUTHORITY = re.compile(
    r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[^:@/\[\]]+))(?::(?P<port>[0-9]{1,5}))?"
)
_FORBIDDEN = 403


@dataclass(frozen=True, kw_only=True)
class Admission:
    """The guard's rules: `hosts` allowed besides the server's address, and allowed `origins`.

    A host is `name` or `name:port`, an origin `scheme://host[:port]`. With `links`, for a user
    interface, a person may follow another page's link to a page of this server, but not to a query.
    """

    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    links: bool = False
    hosts_setting: str = ""
    """What people set `hosts` with, if they can: a variable or an option, for messages."""
    origins_setting: str = ""

    def explain_refusal(self, scope: Scope) -> str:
        """The reason to refuse a request, with the remedy; empty when it is allowed."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) > 1 or not all(self._is_own_host(host, scope) for host in hosts):
            hint = f", or add the name to {self.hosts_setting}" if self.hosts_setting else ""
            return (
                f"The Host {_format_values(hosts)} is not the address of this server; use the "
                f"address that it listens on{hint}."
            )
        origins = headers.getlist("origin")
        if any(origin in self.origins for origin in origins) and len(origins) == 1:
            return ""
        if not all(_is_own(origin, hosts) for origin in origins):
            return (
                f"The Origin {_format_values(origins)} is not allowed to use this server; "
                f"{self._remedy}."
            )
        sites = headers.getlist("sec-fetch-site")
        if all(site in _OWN_SITES for site in sites) or (self.links and _is_link(scope, headers)):
            return ""
        return (
            f"Requests of other web pages (Sec-Fetch-Site: {_format_values(sites)}) are not "
            f"allowed; {self._remedy}."
        )

    @property
    def _remedy(self) -> str:
        hint = (
            f", or add that page's origin to {self.origins_setting}" if self.origins_setting else ""
        )
        return f"open this server's own address{hint}"

    def _is_own_host(self, host: str, scope: Scope) -> bool:
        """Whether the Host is this server's, on any port: forwarding changes ports, not names."""
        name, port = _split_host(host, _DEFAULT_PORTS[scope["scheme"]])
        if name in self.hosts or f"{name}:{port}" in self.hosts:
            return True
        address = (scope.get("server") or ("",))[0]
        return bool(name) and (
            name == address or (name == "localhost" and _is_loopback_address(address))
        )


def _make_plain_response(status: int, reason: str, headers: Mapping[str, str]) -> Response:
    return PlainTextResponse(f"{reason}\n", status_code=status, headers=headers)


@dataclass(frozen=True)
class Guard:
    """The ASGI middleware: answers refused requests with 403 before reading any of them.

    `make_response` makes the answer from status, reason and headers; by default it is plain text.
    """

    app: ASGIApp
    admission: Admission
    make_response: Callable[[int, str, Mapping[str, str]], Response] = _make_plain_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = (
            self.admission.explain_refusal(scope) if scope["type"] in {"http", "websocket"} else ""
        )
        if not reason:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            # A websocket that is closed before it is accepted is answered with 403 (ASGI doc).
            await WebSocketClose()(scope, receive, send)
        else:
            response = self.make_response(_FORBIDDEN, reason, {"Connection": "close"})
            await response(scope, receive, send)


def parse_names(text: str) -> frozenset[str]:
    """The names in a setting, separated by spaces or commas; in lower case, without a final dot."""
    return frozenset(name.lower().rstrip(".") for name in re.split(r"[\s,]+", text) if name)


def parse_origins(text: str) -> frozenset[str]:
    """The origins in a setting. Raises ValueError for anything else, `*` and `null` included."""
    origins = parse_names(text)
    for origin in origins:
        parts = urlsplit(origin)
        if parts.scheme not in {"http", "https"} or origin != f"{parts.scheme}://{parts.netloc}":
            raise ValueError(
                f"the allowed origin {origin!r} is not an origin; write scheme://host[:port]"
            )
    return origins


def is_loopback(host: str) -> bool:
    """Whether a server that listens on this address is reached only from this machine."""
    return host == "localhost" or _is_loopback_address(host)


def _is_own(origin: str, hosts: list[str]) -> bool:
    """Whether the page came from this very server; the Host must have been checked before."""
    parts = urlsplit(origin)
    default = _DEFAULT_PORTS.get(parts.scheme)
    if default is None or len(hosts) != 1:
        return False
    # A proxy may speak https to the page and http to this server.
    return _split_host(parts.netloc, default) == _split_host(hosts[0], default)


def _is_link(scope: Scope, headers: Headers) -> bool:
    """Whether a person follows a link: the answer is shown to them, and no page can read it."""
    return (
        scope["type"] == "http"
        and scope["method"] == "GET"
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
        and "graphql" not in scope["path"].split("/")
    )


def _split_host(host: str, default: int) -> tuple[str, int]:
    """Name and port of a Host header; an empty name for an invalid one."""
    match = _AUTHORITY.fullmatch(host.lower())
    if match is None:
        return "", 0
    return (match["name"] or match["v6"]).rstrip("."), int(match["port"] or default)


def _is_loopback_address(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _format_values(values: list[str]) -> str:
    return ", ".join(repr(value) for value in values)
