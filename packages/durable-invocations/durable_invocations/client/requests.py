"""What a request to the runtime of invocations can carry; the rest is refused before it is sent."""

from __future__ import annotations

import json
import math
import re
from typing import Any
from urllib.parse import quote

from durable_invocations.addresses import http_address
from durable_invocations.client.errors import InvocationRefusedError
from durable_invocations.durations import CENTURY
from durable_invocations.errors import ConfigError

_SECRET = re.compile(r"[!-~]*")
_UPWARDS = {".": "%2E", "..": "%2E%2E"}


def checked_url(url: str) -> str:
    """The address without a final slash. Raises ConfigError; secrets in it are not told."""
    parts = http_address(url)
    if parts is None or "@" in parts.netloc or "?" in url or "#" in url:
        raise ConfigError(
            "The url is not an address of a runtime; write http://host:port, without user, query "
            "or fragment, and give the token by itself."
        )
    return url.rstrip("/")


def authorization(token: str) -> dict[str, str]:
    """The header that carries the token; none without one. Raises ConfigError, not telling it."""
    if not _SECRET.fullmatch(token):
        raise ConfigError(
            "The token has spaces, line breaks or others than ASCII in it; write it as "
            "the runtime has it."
        )
    return {"Authorization": f"Bearer {token}"} if token else {}


def path(*parts: str) -> str:
    """The path of these parts, each as it is. Raises InvocationRefusedError for what is no text,
    and for what is empty: no name, key or id is.
    """
    if not all(parts):
        raise InvocationRefusedError("A name, a key or an id is empty; give one.")
    # `.` and `..` would be taken for steps upwards.
    return "".join(f"/{_UPWARDS.get(each) or quote(encoded(each), safe='')}" for each in parts)


def checked(text: str) -> str:
    """The text. Raises InvocationRefusedError for what is none."""
    return encoded(text).decode()


def encoded(text: str) -> bytes:
    """The text in UTF-8. Raises InvocationRefusedError for what is no text."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvocationRefusedError(f"{text!r} is no text: it has a lone surrogate.") from error


def idempotency(key: str) -> bytes:
    """The key as a header has it. Raises InvocationRefusedError for what no header keeps."""
    if not key or key != key.strip() or not all(each == " " or each.isprintable() for each in key):
        raise InvocationRefusedError(
            f"The idempotency key {key!r} is empty, has spaces at its ends, or has what cannot be "
            "printed in it; name the request otherwise."
        )
    return key.encode()


def milliseconds(delay: float) -> dict[str, str]:
    """The parameter of a delay in seconds. Raises InvocationRefusedError for what is none."""
    if math.isnan(delay) or delay > CENTURY:
        raise InvocationRefusedError(
            f"The delay {delay} is no number of seconds up to a century; give a shorter one."
        )
    return {"delay": f"{round(delay * 1_000)}"} if delay > 0 else {}


def written(value: Any) -> bytes | None:
    """The value in JSON, bytes as they are, nothing for None. Raises InvocationRefusedError."""
    if value is None or isinstance(value, bytes):
        return value
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvocationRefusedError(f"The value is no JSON: {error}.") from error
