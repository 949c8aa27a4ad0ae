"""multipart/form-data: query parameters in fields, external tables in files (RFC 7578)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.message import Message
from itertools import chain, islice
from typing import TYPE_CHECKING

from chdb_http.sql.errors import Code, EngineError
from chdb_http.sql.octets import to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD_END = b"\r\n\r\n"
_MAX_PARTS = 10_000
_WINDOW = 1 << 20
# Each costs a search of the whole header.
_MAX_SEMICOLONS = 100


@dataclass(frozen=True, kw_only=True)
class FormPart:
    """One part of a form; `filename` is None for a field."""

    name: str
    filename: str | None
    data: bytes


def is_multipart(content_type: str) -> bool:
    return content_type.lower().startswith("multipart/form-data")


def parse_form(content_type: str, body: bytes) -> list[FormPart]:
    """The parts of a form body.

    Raises `EngineError` 36 for one without a boundary or names, and for more than 10,000 parts.
    """
    boundary = _get_parameter(content_type, "boundary")
    if not boundary:
        raise EngineError(Code.BAD_ARGUMENTS, f"Content-Type '{content_type}' has no boundary")
    pieces = _split_parts(body, b"\r\n--" + to_bytes(boundary))
    parts = [_parse_part(piece) for piece in islice(pieces, _MAX_PARTS + 1)]
    if len(parts) > _MAX_PARTS:
        raise EngineError(Code.BAD_ARGUMENTS, f"The form has more than {_MAX_PARTS} parts")
    return parts


def _split_parts(body: bytes, mark: bytes) -> Iterator[bytes]:
    """Yield the bytes between marks, without what follows the closing one."""
    start = len(mark) - 2 if body.startswith(mark[2:]) else None
    for place in chain(_find_marks(body, mark), (len(body),)):
        if start is not None and not body.startswith(b"--", start):
            yield body[start:place]
        start = place + len(mark)


def _find_marks(body: bytes, mark: bytes) -> Iterator[int]:
    """Where `mark` is; searches a bounded piece at a time, so that other threads get their turn."""
    at = 0
    while at < len(body):
        place = body.find(mark, at, at + _WINDOW + len(mark) - 1)
        if place >= 0:
            yield place
        at = at + _WINDOW if place < 0 else place + len(mark)


def _parse_part(piece: bytes) -> FormPart:
    head, separator, data = piece.removeprefix(b"\r\n").partition(_HEAD_END)
    lines = re.split(r"\r\n(?![ \t])", head.decode("utf-8", "replace"))
    headers = dict(line.split(":", 1) for line in lines if ":" in line)
    normalized = {name.strip().lower(): value.strip() for name, value in headers.items()}
    disposition = normalized.get("content-disposition", "")
    name = _get_parameter(disposition, "name")
    if not separator or name is None:
        raise EngineError(Code.BAD_ARGUMENTS, "A part of the form has no name; add one to it")
    return FormPart(name=name, filename=_get_parameter(disposition, "filename"), data=data)


def _get_parameter(header: str, name: str) -> str | None:
    if header.count(";") > _MAX_SEMICOLONS:
        return None
    message = Message()
    message["content-type"] = header if ";" in header else f"{header};"
    try:
        value = message.get_param(name)
    except (ValueError, IndexError, TypeError):
        return None
    return value if isinstance(value, str) else None
