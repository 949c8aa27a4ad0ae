"""Checks credentials against the one account (ClickHouse doc: HTTP interface)."""

from __future__ import annotations

import base64
import binascii
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chdb_http.sql.errors import Code, EngineError

if TYPE_CHECKING:
    from starlette.requests import Request

DEFAULT_USER = "default"
_HINT = (
    "Authentication failed: password is incorrect, or there is no user with such name. "
    "Use Basic authorization, the X-ClickHouse-User and X-ClickHouse-Key headers, or the user "
    "and password parameters"
)


@dataclass(frozen=True, kw_only=True)
class Account:
    """The one account of the server; its password never appears in a message."""

    user: str = DEFAULT_USER
    password: str = field(repr=False)

    def check(self, request: Request) -> None:
        """Raise `EngineError` 516 for wrong credentials and 194 for none."""
        user, password = _parse_credentials(request)
        if password is None:
            raise EngineError(Code.REQUIRED_PASSWORD, f"{user}: {_HINT}")
        right_user = hmac.compare_digest(user.encode(), self.user.encode())
        right_password = hmac.compare_digest(password.encode(), self.password.encode())
        if not (right_user and right_password):
            raise EngineError(Code.AUTHENTICATION_FAILED, f"{user}: {_HINT}")


def _parse_credentials(request: Request) -> tuple[str, str | None]:
    headers, params = request.headers, request.query_params
    if "x-clickhouse-user" in headers or "x-clickhouse-key" in headers:
        user = headers.get("x-clickhouse-user", DEFAULT_USER)
        return _decode_header(user), _decode_header(headers.get("x-clickhouse-key", ""))
    if "authorization" in headers:
        return _parse_basic(headers["authorization"])
    if "user" in params or "password" in params:
        return params.get("user", DEFAULT_USER), params.get("password", "")
    return DEFAULT_USER, None


def _decode_header(header: str) -> str:
    """A header's text: it comes as Latin-1, but clients send UTF-8."""
    return header.encode("latin-1").decode("utf-8", "replace")


def _parse_basic(header: str) -> tuple[str, str]:
    scheme, _, value = header.partition(" ")
    try:
        decoded = base64.b64decode(value, validate=True).decode() if scheme == "Basic" else ""
    except (binascii.Error, UnicodeDecodeError):
        decoded = ""
    user, _, password = decoded.partition(":")
    return user or DEFAULT_USER, password
