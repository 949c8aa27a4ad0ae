"""Errors as clients see them: a code and a message each, without the server's internals."""

from __future__ import annotations

import logging
from typing import Any

from graphql import GraphQLError

from iscp_dagster.clickhouse.connect.failures import ClickHouseBusyError
from iscp_dagster.model.errors import IscpError, UnavailableError
from iscp_dagster.serve.access import UnauthenticatedError
from iscp_dagster.serve.graph.documents import BAD_INPUT, TOO_COMPLEX
from iscp_dagster.serve.reads.caps import TooComplexError
from iscp_dagster.serve.reads.nearest import ForbiddenError
from iscp_dagster.serve.scalars import BadValueError

_LOGGER = logging.getLogger(__name__)
TIMEOUT, UNAVAILABLE, INTERNAL = "TIMEOUT", "UNAVAILABLE", "INTERNAL_SERVER_ERROR"
UNAUTHENTICATED, FORBIDDEN = "UNAUTHENTICATED", "FORBIDDEN"
_TIMEOUT_EXCEEDED = {159, 160, 209, 394}
_TOO_MANY = {158, 307, 396, 241}
"""ClickHouse's codes for rows, bytes and memory beyond a query's limits."""
_CLIENT_CODES = {
    BadValueError: BAD_INPUT,
    TooComplexError: TOO_COMPLEX,
    ForbiddenError: FORBIDDEN,
    UnauthenticatedError: UNAUTHENTICATED,
}
"""Errors whose messages are made for clients."""
_MESSAGES = {
    TIMEOUT: "The query took longer than this server allows; ask for less, or narrow `where`.",
    TOO_COMPLEX: "The query needs more than this server allows; ask for less.",
    UNAVAILABLE: "ClickHouse does not answer now; ask again later.",
    INTERNAL: "The server could not answer; its log has the reason.",
}


def format_error(error: GraphQLError) -> dict[str, Any]:
    """Return an error for the answer; logs what the answer leaves out."""
    cause = error.original_error
    # GraphQL's own errors, also of a variable's value, are made for clients.
    if cause is None or isinstance(cause, GraphQLError):
        error.extensions = {"code": BAD_INPUT, **(error.extensions or {})}
        return dict(error.formatted)
    message, code = log_and_describe_error(cause)
    public_error = GraphQLError(message, error.nodes, path=error.path, extensions={"code": code})
    return dict(public_error.formatted)


def log_and_describe_error(cause: BaseException) -> tuple[str, str]:
    """Return an error's message and code for a client; logs the rest."""
    for type_, code in _CLIENT_CODES.items():
        if isinstance(cause, type_):
            return str(cause), code
    code = _find_code(cause)
    if code == INTERNAL:
        _LOGGER.error("A request failed.", exc_info=cause)
    else:
        _LOGGER.warning("A request failed (%s): %s", code, cause)
    return _MESSAGES[code], code


def _find_code(cause: BaseException) -> str:
    number = getattr(cause.__cause__, "code", None) if isinstance(cause, IscpError) else None
    if number in _TIMEOUT_EXCEEDED:
        return TIMEOUT
    if number in _TOO_MANY:
        return TOO_COMPLEX
    temporary = isinstance(cause, ClickHouseBusyError | UnavailableError)
    return UNAVAILABLE if temporary else INTERNAL
