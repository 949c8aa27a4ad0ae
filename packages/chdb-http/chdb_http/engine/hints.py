"""Hints to add to the engine's errors where this server lacks what ClickHouse's own has."""

from __future__ import annotations

import re

from chdb_http.sql.errors import Code, EngineError

_GET = (
    "For queries over HTTP, method GET implies readonly. "
    "You should use method POST for modifying queries"
)
_NO_ACCESS = (
    "Not supported: the embedded server has one account and keeps no users, roles, quotas or "
    "policies. Use a ClickHouse server for them"
)
_NO_LOGS = (
    "Not supported: the embedded server keeps no system logs unless its --config-file names them, "
    "as <query_log> does"
)
_LOG_TABLE = re.compile(r"\bsystem`?\.`?\w+_log\b")
_ACCESS = re.compile(r"have the grant [A-Z ,]*\b(?:USER|ROLE|QUOTA|POLIC|PROFILE|ACCESS)")


def add_hint(error: EngineError, *, read_only: bool) -> EngineError:
    """The same error with a hint: what this server lacks, or that a GET may only read."""
    hint = _find_hint(error, read_only=read_only)
    if hint is None:
        return error
    return EngineError(error.number, f"{error.detail.rstrip('.')}. {hint}", error.name)


def _find_hint(error: EngineError, *, read_only: bool) -> str | None:
    if error.number == Code.READONLY and read_only:
        return _GET
    if error.number == Code.ACCESS_DENIED and _ACCESS.search(error.detail):
        return _NO_ACCESS
    if error.number in {Code.UNKNOWN_ROLE, Code.UNKNOWN_USER}:
        return _NO_ACCESS
    if error.number == Code.UNKNOWN_TABLE and _LOG_TABLE.search(error.detail):
        return _NO_LOGS
    return None
