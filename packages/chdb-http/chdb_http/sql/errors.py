"""A ClickHouse exception: its number, its text, and the HTTP status that the server gives it."""

from __future__ import annotations

import re
from enum import IntEnum
from http import HTTPStatus


class Code(IntEnum):
    """The exceptions that the HTTP interface itself raises (ClickHouse, ErrorCodes.cpp)."""

    BAD_ARGUMENTS = 36
    NOT_IMPLEMENTED = 48
    SYNTAX_ERROR = 62
    CANNOT_PARSE_INPUT_ASSERTION_FAILED = 27
    UNKNOWN_TYPE_OF_QUERY = 78
    UNKNOWN_SETTING = 115
    INCORRECT_DATA = 117
    READONLY = 164
    REQUIRED_PASSWORD = 194
    TOO_MANY_SIMULTANEOUS_QUERIES = 202
    QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING = 216
    QUERY_IS_TOO_LARGE = 229
    CANNOT_DECOMPRESS = 271
    DATABASE_ACCESS_DENIED = 291
    INTO_OUTFILE_NOT_ALLOWED = 358
    SESSION_NOT_FOUND = 372
    SESSION_IS_LOCKED = 373
    INVALID_SESSION_TIMEOUT = 374
    QUERY_WAS_CANCELLED = 394
    ACCESS_DENIED = 497
    AUTHENTICATION_FAILED = 516
    UNKNOWN_TABLE = 60
    UNKNOWN_FORMAT = 73
    UNKNOWN_USER = 192
    UNKNOWN_ROLE = 511
    STD_EXCEPTION = 1001


# Source: ClickHouse, src/Server/HTTP/exceptionCodeToHTTPStatus.cpp.
_NUMBERS_BY_STATUS = {
    HTTPStatus.UNAUTHORIZED: (194,),
    HTTPStatus.FORBIDDEN: (192, 193, 497, 512, 516),
    HTTPStatus.BAD_REQUEST: (
        *(6, 8, 15, 25, 26, 27, 36, 37, 38, 41, 44, 53, 62, 72, 117, 123),
        *(167, 168, 223, 321, 376, 427, 441, 675, 676),
    ),
    HTTPStatus.NOT_FOUND: (46, 47, 50, 56, 60, 63, 73, 78, 81, 115, 152, 336, 511),
    HTTPStatus.REQUEST_TIMEOUT: (159,),
    HTTPStatus.LENGTH_REQUIRED: (381,),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: (229,),
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: (779,),
    HTTPStatus.NOT_IMPLEMENTED: (48,),
    HTTPStatus.SERVICE_UNAVAILABLE: (76, 209, 439),
}
_STATUS = {number: status for status, all_ in _NUMBERS_BY_STATUS.items() for number in all_}

_PREFIX = re.compile(r"Code: (\d+)\. DB::Exception: ")
_VERSION = re.compile(r"\(version [^()]*(?:\([^()]*\))?\)\.?")
_NAME = re.compile(r"\.?\s*\(([A-Z][A-Z0-9_]+)\)\.?\s*$")
# Enough for a name at the message's end, after what may be megabytes of quoted statement.
_NAME_CHARACTERS = 200
# How many characters of a bad value a message repeats.
_SHOWN = 100


def truncate_value(value: str) -> str:
    """A bad value as a message repeats it."""
    return value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."


class EngineError(Exception):
    """One ClickHouse exception; `number` is ClickHouse's."""

    def __init__(self, number: int, detail: str, name: str | None = None) -> None:
        super().__init__(detail)
        self.number = int(number)
        self.detail = detail
        self.name = name or (number.name if isinstance(number, Code) else "UNKNOWN_EXCEPTION")

    @property
    def status(self) -> HTTPStatus:
        """The HTTP status of a response that fails before its first byte is sent."""
        return _STATUS.get(self.number, HTTPStatus.INTERNAL_SERVER_ERROR)

    def render(self, version: str) -> str:
        """The line that ClickHouse puts in the body of a failed response."""
        end = "" if self.detail.endswith(".") else "."
        return (
            f"Code: {self.number}. DB::Exception: {self.detail}{end} ({self.name}) "
            f"(version {version} (official build))\n"
        )


def from_engine(error: BaseException) -> EngineError:
    """The exception behind an error of chDB; nested prefixes and versions are removed."""
    text = str(error)
    if isinstance(error, UnicodeDecodeError):
        # chDB could not decode its own message, which quotes the statement's bytes.
        text = error.object.decode("utf-8", "replace")
    prefix = _PREFIX.search(text)
    if prefix is None:
        return EngineError(Code.STD_EXCEPTION, f"std::exception. {type(error).__name__}: {text}")
    *parts, tail = _VERSION.split(_PREFIX.sub("", text[prefix.start() :]))
    detail = "".join([*(part.rstrip() for part in parts), tail])
    name, end = None, len(detail)
    while (match := _NAME.search(detail, max(end - _NAME_CHARACTERS, 0), end)) is not None:
        name, end = match[1], match.start()
    return EngineError(int(prefix[1]), detail[:end].strip(), name)
