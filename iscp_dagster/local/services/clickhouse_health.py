"""Checks whether a ClickHouse answers a query."""

from __future__ import annotations

import base64
import http.client
from urllib.parse import unquote, urlsplit

_SECONDS = 5.0
_BUSY = "202"
"""ClickHouse's code for too many simultaneous queries: it answers, so it is only busy."""


def find_problem(url: str, seconds: float = _SECONDS) -> str:
    """The problem in one line that shows no password; empty when there is none."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=seconds)
    try:
        connection.request(
            "POST", "/", b"SELECT 1", _build_auth_header(parts.username, parts.password)
        )
        answer = connection.getresponse()
        text = answer.read(1_000).decode("utf-8", "replace")
    except TimeoutError:
        return f"did not answer SELECT 1 within {seconds:.0f} seconds"
    except (OSError, http.client.HTTPException) as error:
        return f"does not answer: {error}"
    finally:
        connection.close()
    if (
        answer.status == http.client.OK
        or answer.headers.get("X-ClickHouse-Exception-Code") == _BUSY
    ):
        return ""
    return f"answers SELECT 1 with {answer.status}: {' '.join(text.split())}"


def _build_auth_header(user: str | None, password: str | None) -> dict[str, str]:
    if not user:
        return {}
    credentials = f"{unquote(user)}:{unquote(password or '')}".encode()
    return {"Authorization": f"Basic {base64.b64encode(credentials).decode()}"}
