"""Asks for the bearer token of the runtime, where one is configured."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from durable_invocations.errors import ConfigError
from durable_invocations.ingress.refusals import UNAUTHENTICATED, told

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

SHORTEST = 16
_BEARER = re.compile(r"bearer +([!-~]{1,4096}) *", re.IGNORECASE)


def checked(token: str, setting: str = "token") -> str:
    """A configured token, as it is. Raises ConfigError for one that is no secret."""
    if not re.fullmatch(r"[!-~]*", token) or 0 < len(token) < SHORTEST:
        raise ConfigError(
            f"{setting} is no secret: use at least {SHORTEST} visible ASCII characters, "
            "such as `openssl rand -hex 32` prints."
        )
    return token


@dataclass(frozen=True)
class Gate:
    """The ASGI middleware: answers 401 before reading a request without the token.

    What is at the path `open_at`, or below `open_below` (with its final slash), needs none.
    """

    app: ASGIApp
    token: str
    name: str = "the runtime's token"
    open_at: str = ""
    open_below: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._open(scope["path"]):
            await self.app(scope, receive, send)
        elif not self._admits(Headers(scope=scope).getlist("authorization")):
            reason = f"Send `Authorization: Bearer …` with {self.name}."
            headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
            refused = told(UNAUTHENTICATED, UNAUTHENTICATED, reason, headers)
            await refused(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _open(self, path: str) -> bool:
        return path == self.open_at or bool(self.open_below and path.startswith(self.open_below))

    def _admits(self, given: list[str]) -> bool:
        found = _BEARER.fullmatch(given[0]) if len(given) == 1 else None
        # Digests have one length, so the time of the comparison tells nothing of the token.
        return found is not None and hmac.compare_digest(_digest(found[1]), _digest(self.token))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
