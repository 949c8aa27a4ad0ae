"""Service deployments: the addresses that serve services, as discovery found them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from durable_invocations.protocol.services import HandlerKind, Mode, ServiceKind


@dataclass(frozen=True, kw_only=True)
class Handler:
    """One handler of a service."""

    name: str
    kind: HandlerKind = HandlerKind.SHARED
    described: Any = None
    """The manifest's own entry (input, output, documentation, metadata); JSON."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """One service, with the deployment that serves its new invocations."""

    name: str
    kind: ServiceKind
    handlers: tuple[Handler, ...]
    deployment: str = ""
    """The deployment's id; empty: what registers it."""

    def handler(self, name: str) -> Handler | None:
        return next((each for each in self.handlers if each.name == name), None)


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """An address that serves services."""

    id: str
    url: str
    """Ends without a slash."""
    mode: Mode = Mode.REQUEST_RESPONSE
    http: int = 1
    """The version of HTTP that it is spoken to with: 1 or 2."""
    versions: tuple[int, int] = (1, 3)
    """The least and the greatest version of the service protocol."""
    registered: int = 0
    """Milliseconds since 1970; the store sets it."""
