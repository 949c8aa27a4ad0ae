"""Service deployments, as discovered: the addresses that serve services."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from durable_invocations.protocol.services import HandlerKind, Mode, ServiceKind


@dataclass(frozen=True, kw_only=True)
class RegisteredHandler:
    """One handler of a service."""

    name: str
    kind: HandlerKind = HandlerKind.SHARED
    described: Any = None
    """The manifest's own entry (input, output, documentation, metadata); JSON."""


@dataclass(frozen=True, kw_only=True)
class RegisteredService:
    """One service, with the deployment that serves its new invocations."""

    name: str
    kind: ServiceKind
    handlers: tuple[RegisteredHandler, ...]
    deployment: str = ""
    """The deployment's id; empty for the one that registers it."""

    def handler(self, name: str) -> RegisteredHandler | None:
        return next((handler for handler in self.handlers if handler.name == name), None)


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """An address that serves services."""

    id: str
    url: str
    """Ends without a slash."""
    mode: Mode = Mode.REQUEST_RESPONSE
    http: int = 1
    """The version of HTTP that the runtime uses: 1 or 2."""
    versions: tuple[int, int] = (1, 3)
    """The lowest and highest version of the service protocol."""
    registered: int = 0
    """Milliseconds since 1970; the store sets it."""
