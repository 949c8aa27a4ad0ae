"""Errors as clients see them: a code and a message each, and nothing of the server's inside."""

from __future__ import annotations

import logging
from typing import Any

from graphql import GraphQLError

from iscp_dagster.clickhouse.connect.failures import ClickHouseBusyError
from iscp_dagster.model.errors import IscpError, UnavailableError
from iscp_dagster.serve.access import UnauthenticatedError
from iscp_dagster.serve.graph.documents import INPUT, TOO_COMPLEX
from iscp_dagster.serve.reads.caps import TooComplexError
from iscp_dagster.serve.reads.nearest import ForbiddenError
from iscp_dagster.serve.scalars import BadValueError

_LOGGER = logging.getLogger(__name__)
TIMEOUT, UNAVAILABLE, INTERNAL = "TIMEOUT", "UNAVAILABLE", "INTERNAL_SERVER_ERROR"
UNAUTHENTICATED, FORBIDDEN = "UNAUTHENTICATED", "FORBIDDEN"
_TIMEOUT_EXCEEDED = {159, 160, 209, 394}
_TOO_MANY = {158, 307, 396, 241}
"""Codes of ClickHouse for rows, bytes and memory beyond a query's limits."""
_OWN = {
    BadValueError: INPUT,
    TooComplexError: TOO_COMPLEX,
    ForbiddenError: FORBIDDEN,
    UnauthenticatedError: UNAUTHENTICATED,
}
"""Errors whose messages are made for clients."""
_SAID = {
    TIMEOUT: "The query took longer than this server allows; ask for less, or narrow `where`.",
    TOO_COMPLEX: "The query needs more than this server allows; ask for less.",
    UNAVAILABLE: "ClickHouse does not answer now; ask again later.",
    INTERNAL: "The server could not answer; its log has the reason.",
}


def told(error: GraphQLError) -> dict[str, Any]:
    """Return an error for the answer; logs what it does not tell."""
    cause = error.original_error
    # GraphQL's own errors, also of a variable's value, are made for clients.
    if cause is None or isinstance(cause, GraphQLError):
        error.extensions = {"code": INPUT, **(error.extensions or {})}
        return dict(error.formatted)
    message, code = said(cause)
    shown = GraphQLError(message, error.nodes, path=error.path, extensions={"code": code})
    return dict(shown.formatted)


def said(cause: BaseException) -> tuple[str, str]:
    """Return what a client is told about an error: a message and a code; logs the rest."""
    for type_, code in _OWN.items():
        if isinstance(cause, type_):
            return str(cause), code
    code = _code(cause)
    if code == INTERNAL:
        _LOGGER.error("A request failed.", exc_info=cause)
    else:
        _LOGGER.warning("A request failed (%s): %s", code, cause)
    return _SAID[code], code


def _code(cause: BaseException) -> str:
    number = getattr(cause.__cause__, "code", None) if isinstance(cause, IscpError) else None
    if number in _TIMEOUT_EXCEEDED:
        return TIMEOUT
    if number in _TOO_MANY:
        return TOO_COMPLEX
    temporary = isinstance(cause, ClickHouseBusyError | UnavailableError)
    return UNAVAILABLE if temporary else INTERNAL
