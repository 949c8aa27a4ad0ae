"""Answers to refused requests: a status, and a JSON body with code and message."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse, Response

BAD, UNAUTHENTICATED, NOT_FOUND, TIMEOUT = 400, 401, 404, 408
TOO_LARGE, UNSUPPORTED, UNPROCESSABLE = 413, 415, 422
NOT_READY = 470
"""The requested output does not exist yet, as Restate answers."""
BUSY, BAD_GATEWAY, UNAVAILABLE = 429, 502, 503
_STATUSES = range(400, 600)
_FAILED = 500
PLAIN = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    # An output may be a page: its scripts must not act as the runtime's own.
    "Content-Security-Policy": "sandbox",
}


class RefusedError(Exception):
    """A request that is refused with an HTTP status."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})


def make_refusal_response(refused: RefusedError) -> Response:
    """The answer to a refused request."""
    return make_error_response(refused.status, refused.status, str(refused), refused.headers)


def make_failure_response(
    code: int, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """The answer for a handler's terminal failure: its code is the status, if HTTP has it."""
    return make_error_response(code if code in _STATUSES else _FAILED, code, message, headers)


def make_error_response(
    status: int, code: int, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer with `code` and `message`."""
    body = {"code": code, "message": message}
    return JSONResponse(body, status, headers={**PLAIN, **(headers or {})})
