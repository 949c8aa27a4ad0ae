"""Requires the bearer token of the runtime, if one is configured."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from durable_invocations.errors import ConfigError
from durable_invocations.ingress.refusals import UNAUTHENTICATED, make_error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

SHORTEST = 16
_BEARER = re.compile(r"bearer +([!-~]{1,4096}) *", re.IGNORECASE)


def check_token(token: str, setting: str = "token") -> str:
    """The configured token, unchanged. Raises ConfigError if it is invalid."""
    if not re.fullmatch(r"[!-~]*", token) or 0 < len(token) < SHORTEST:
        raise ConfigError(
            f"{setting} is invalid: use at least {SHORTEST} visible ASCII characters, "
            "such as `openssl rand -hex 32` prints."
        )
    return token


@dataclass(frozen=True)
class Gate:
    """The ASGI middleware: answers 401 before reading a request without the token.

    The path `open_at`, and paths below `open_below` (with its final slash), need none.
    """

    app: ASGIApp
    token: str
    name: str = "the runtime's token"
    open_at: str = ""
    open_below: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_open(scope["path"]):
            await self.app(scope, receive, send)
        elif not self._is_admitted(Headers(scope=scope).getlist("authorization")):
            reason = f"Send `Authorization: Bearer …` with {self.name}."
            headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
            refused = make_error_response(UNAUTHENTICATED, UNAUTHENTICATED, reason, headers)
            await refused(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return path == self.open_at or bool(self.open_below and path.startswith(self.open_below))

    def _is_admitted(self, values: list[str]) -> bool:
        match = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
        # Digests have one length, so the comparison's time reveals nothing about the token.
        return match is not None and hmac.compare_digest(
            _hash_token(match[1]), _hash_token(self.token)
        )


def _hash_token(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
