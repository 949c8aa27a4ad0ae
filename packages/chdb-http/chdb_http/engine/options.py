"""A request's options besides its query: settings, parameters, formats, session, buffering."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from chdb_http.sql.errors import Code, EngineError, truncate_value
from chdb_http.sql.octets import from_header, has_controls

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.requests import Request

DEFAULT_FORMAT = "TabSeparated"
_DEFAULT_SESSION_SECONDS = 60
_MAX_SESSION_SECONDS = 3600
_DEFAULT_BUFFER_BYTES = 1 << 20
_DEFAULT_QUERY_BYTES = 1 << 18

# Parameters of the interface itself; any other is a setting (ClickHouse doc: HTTP interface).
_RESERVED = frozenset({
    *("query", "query_id", "database", "default_format", "user", "password", "quota_key"),
    *("session_id", "session_timeout", "session_check", "close_session", "role", "stacktrace"),
    *("compress", "decompress", "buffer_size", "wait_end_of_query", "client_protocol_version"),
    "http_native_compression_disable_checksumming_on_decompress",
})  # fmt: skip
_PARAMETER = "param_"
_QUERY_LIMIT = "max_query_size"
# A number that certainly fits into 64 bits.
_NUMBER = re.compile(r"0{0,99}[0-9]{1,19}", re.ASCII)
_SETTING_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*", re.ASCII)
# Identifiers as the engine's lexer takes them, which may begin with a digit.
_PARAMETER_NAME = re.compile(r"param_[A-Za-z0-9_$]+", re.ASCII)
# The server's own http_max_uri_size, and a bound for the work that a URL makes.
MAX_URL_BYTES = 1 << 20
_MAX_FIELDS = 10_000


@dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """A named session: `must_exist` is session_check, `close` ends it after the request."""

    session_id: str
    seconds: int
    must_exist: bool
    close: bool


@dataclass(frozen=True, kw_only=True)
class Options:
    """One request's options; `settings` holds settings and `param_` values in their order."""

    query: str
    query_id: str
    settings: Mapping[str, str] = field(default_factory=dict)
    database: str | None = None
    role: str | None = None
    default_format: str = DEFAULT_FORMAT
    session: SessionRequest | None = None
    read_only: bool = False
    wait_end: bool = False
    buffer_bytes: int = _DEFAULT_BUFFER_BYTES
    accept_encoding: str = ""
    content_encoding: str = ""

    @property
    def sets_query_limit(self) -> bool:
        return _QUERY_LIMIT in self.settings

    @property
    def max_query_bytes(self) -> int:
        """The most bytes of a statement; an invalid value is left for the engine to refuse."""
        value = self.settings.get(_QUERY_LIMIT, "")
        return int(value) if _NUMBER.fullmatch(value) else _DEFAULT_QUERY_BYTES

    def add_fields(self, fields: Iterable[tuple[str, str]], files: Iterable[str]) -> Options:
        """A copy with form fields added, and without settings that describe external tables."""
        described = {
            f"{name}_{suffix}" for name in files for suffix in ("format", "structure", "types")
        }
        pairs = dict(fields)
        settings = {name: value for name, value in self.settings.items() if name not in described}
        return replace(
            self,
            query=self.query or pairs.get("query", ""),
            settings={**settings, **_parse_settings(pairs)},
        )


def read_options(request: Request) -> Options:
    """The options of a request. Raises `EngineError` for values that the server would refuse."""
    values = _parse_url_fields(request.scope["query_string"])
    headers = {name: from_header(value) for name, value in request.headers.items()}
    if _parse_flag(values, "compress") or _parse_flag(values, "decompress"):
        raise EngineError(
            Code.NOT_IMPLEMENTED,
            "compress=1 and decompress=1 (native block framing) are not supported by the embedded "
            "server. Use Accept-Encoding and Content-Encoding with lz4, zstd, gzip or deflate",
        )
    # Checked and ignored, as if a proxy had dropped it: Native blocks are those of revision 0.
    _parse_number(values, "client_protocol_version", 0)
    settings = _parse_settings(values)
    compressed = settings.get("enable_http_compression", "1") not in {"0", "false"}
    return Options(
        query=values.get("query", ""),
        query_id=_parse_query_id(values),
        settings=settings,
        database=values.get("database") or headers.get("x-clickhouse-database"),
        role=values.get("role"),
        default_format=headers.get("x-clickhouse-format")
        or values.get("default_format")
        or DEFAULT_FORMAT,
        session=_parse_session(values),
        read_only=request.method in {"GET", "HEAD"},
        wait_end=_parse_flag(values, "wait_end_of_query"),
        buffer_bytes=_parse_number(values, "buffer_size", _DEFAULT_BUFFER_BYTES),
        accept_encoding=headers.get("accept-encoding", "") if compressed else "",
        content_encoding=headers.get("content-encoding", ""),
    )


def _parse_settings(values: Mapping[str, str]) -> dict[str, str]:
    settings = {name: value for name, value in values.items() if name and name not in _RESERVED}
    for name in settings:
        shape = _PARAMETER_NAME if is_parameter(name) else _SETTING_NAME
        if not shape.fullmatch(name):
            raise EngineError(Code.UNKNOWN_SETTING, f"Unknown setting '{name}'")
    return settings


def check_url(query_string: bytes) -> None:
    """Raise `EngineError` 36 for a larger URL than any client needs, before it is parsed."""
    if len(query_string) > MAX_URL_BYTES:
        raise EngineError(
            Code.BAD_ARGUMENTS,
            f"The URL is longer than {MAX_URL_BYTES} bytes. Send the query in the body",
        )
    if query_string.count(b"&") >= _MAX_FIELDS:
        raise EngineError(
            Code.BAD_ARGUMENTS, f"The URL has more than {_MAX_FIELDS} parameters. Send fewer"
        )


def _parse_url_fields(query_string: bytes) -> dict[str, str]:
    pairs = parse_qsl(
        query_string.decode("latin-1"), keep_blank_values=True, errors="surrogateescape"
    )
    return dict(pairs)


def _parse_query_id(values: Mapping[str, str]) -> str:
    query_id = values.get("query_id", "")
    if has_controls(query_id):
        raise EngineError(
            Code.BAD_ARGUMENTS, f"Invalid query_id {query_id!r}: it contains a control character"
        )
    return query_id or str(uuid.uuid4())


def is_parameter(name: str) -> bool:
    """True for a query parameter among the settings."""
    return name.startswith(_PARAMETER)


def _parse_flag(values: Mapping[str, str], name: str) -> bool:
    return values.get(name, "0").lower() in {"1", "true"}


def _parse_number(values: Mapping[str, str], name: str, default: int) -> int:
    value = values.get(name) or str(default)
    if not _NUMBER.fullmatch(value):
        raise EngineError(
            Code.CANNOT_PARSE_INPUT_ASSERTION_FAILED,
            f"Cannot parse the parameter {name}: '{truncate_value(value)}' is not a 64-bit number",
        )
    return int(value)


def _parse_session(values: Mapping[str, str]) -> SessionRequest | None:
    if not values.get("session_id"):
        return None
    timeout = values.get("session_timeout", str(_DEFAULT_SESSION_SECONDS))
    if not timeout.isdecimal() or not timeout.isascii():
        raise EngineError(
            Code.INVALID_SESSION_TIMEOUT, f"Invalid session timeout: '{truncate_value(timeout)}'"
        )
    if not _NUMBER.fullmatch(timeout) or int(timeout) > _MAX_SESSION_SECONDS:
        raise EngineError(
            Code.INVALID_SESSION_TIMEOUT,
            f"Session timeout '{truncate_value(timeout)}' is larger than max_session_timeout: "
            f"{_MAX_SESSION_SECONDS}",
        )
    return SessionRequest(
        session_id=values["session_id"],
        seconds=int(timeout),
        must_exist=_parse_flag(values, "session_check"),
        close=_parse_flag(values, "close_session"),
    )
