"""Builds requests to the runtime of invocations; invalid ones are refused before they are sent."""

from __future__ import annotations

import json
import math
import re
from typing import Any
from urllib.parse import quote

from durable_invocations.addresses import parse_http_address
from durable_invocations.client.errors import InvocationRefusedError
from durable_invocations.durations import CENTURY
from durable_invocations.errors import ConfigError

_SECRET = re.compile(r"[!-~]*")
_UPWARDS = {".": "%2E", "..": "%2E%2E"}


def check_url(url: str) -> str:
    """The address without a final slash. Raises ConfigError, which shows no secrets."""
    parts = parse_http_address(url)
    if parts is None or "@" in parts.netloc or "?" in url or "#" in url:
        raise ConfigError(
            "The url is not an address of a runtime; write http://host:port, without user, query "
            "or fragment, and pass the token separately."
        )
    return url.rstrip("/")


def build_auth_headers(token: str) -> dict[str, str]:
    """The header with the token, if there is one. Raises ConfigError, which does not show it."""
    if not _SECRET.fullmatch(token):
        raise ConfigError(
            "The token contains spaces, line breaks or non-ASCII characters; write it as "
            "the runtime has it."
        )
    return {"Authorization": f"Bearer {token}"} if token else {}


def path(*parts: str) -> str:
    """The path of these parts, each encoded. Raises InvocationRefusedError for a part that is
    empty or not valid text.
    """
    if not all(parts):
        raise InvocationRefusedError("A name, a key or an id is empty; give one.")
    # `.` and `..` would lead to other paths.
    return "".join(f"/{_UPWARDS.get(part) or quote(encode_text(part), safe='')}" for part in parts)


def check_text(text: str) -> str:
    """The text. Raises InvocationRefusedError if it has lone surrogates."""
    return encode_text(text).decode()


def encode_text(text: str) -> bytes:
    """The text in UTF-8. Raises InvocationRefusedError if it has lone surrogates."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvocationRefusedError(
            f"{text!r} is not valid text: it has a lone surrogate."
        ) from error


def encode_idempotency_key(key: str) -> bytes:
    """The key as bytes of a header. Raises InvocationRefusedError if a header cannot hold it."""
    if not key or key != key.strip() or not all(char == " " or char.isprintable() for char in key):
        raise InvocationRefusedError(
            f"The idempotency key {key!r} is empty, begins or ends with a space, or contains "
            "unprintable characters; choose another key."
        )
    return key.encode()


def build_delay_params(delay: float) -> dict[str, str]:
    """The parameter of a delay in seconds. Raises InvocationRefusedError for an invalid one."""
    if math.isnan(delay) or delay > CENTURY:
        raise InvocationRefusedError(
            f"The delay {delay} is not a number of seconds up to a century; give a shorter one."
        )
    return {"delay": f"{round(delay * 1_000)}"} if delay > 0 else {}


def to_json(value: Any) -> bytes | None:
    """The value as JSON; bytes and None unchanged. Raises InvocationRefusedError."""
    if value is None or isinstance(value, bytes):
        return value
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvocationRefusedError(f"The value cannot be written as JSON: {error}.") from error
