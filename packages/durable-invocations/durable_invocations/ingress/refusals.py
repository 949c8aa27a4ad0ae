"""Answers to requests that are not carried out: a status, and a JSON body of code and message."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse, Response

BAD, UNAUTHENTICATED, NOT_FOUND, TIMEOUT = 400, 401, 404, 408
TOO_LARGE, UNSUPPORTED, UNPROCESSABLE = 413, 415, 422
NOT_READY = 470
"""An output is asked for that is not there yet, as Restate answers."""
BUSY, BAD_GATEWAY, UNAVAILABLE = 429, 502, 503
_STATUSES = range(400, 600)
_FAILED = 500
PLAIN = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    # An output may be a page: what it runs must not reach the runtime as the runtime's own page.
    "Content-Security-Policy": "sandbox",
}


class RefusedError(Exception):
    """A request that is answered with an HTTP status without being carried out."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})


def refusal(refused: RefusedError) -> Response:
    """The answer to a refused request."""
    return told(refused.status, refused.status, str(refused), refused.headers)


def failed(code: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """The answer for a handler's terminal failure: its code is the status, if HTTP has it."""
    return told(code if code in _STATUSES else _FAILED, code, message, headers)


def told(
    status: int, code: int, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer with `code` and `message`."""
    body = {"code": code, "message": message}
    return JSONResponse(body, status, headers={**PLAIN, **(headers or {})})
