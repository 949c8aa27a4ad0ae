"""multipart/form-data: query parameters in fields, external tables in files (RFC 7578)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.message import Message

from iscp_dagster.clickhouse.embedded.errors import Code, EngineError

_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a form; `filename` is None for a field."""

    name: str
    filename: str | None
    data: bytes


def is_multipart(content_type: str) -> bool:
    return content_type.lower().startswith("multipart/form-data")


def parse_form(content_type: str, body: bytes) -> list[Part]:
    """The parts of a form body. Raises `EngineError` 36 for one without a boundary or names."""
    boundary = _parameter(content_type, "boundary")
    if not boundary:
        raise EngineError(Code.BAD_ARGUMENTS, f"Content-Type '{content_type}' has no boundary")
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary.encode())
    return [_part(piece) for piece in pieces[1:] if not piece.startswith(b"--")]


def _part(piece: bytes) -> Part:
    head, found, data = piece.removeprefix(b"\r\n").partition(_HEAD_END)
    lines = re.split(r"\r\n(?![ \t])", head.decode("utf-8", "replace"))
    headers = dict(line.split(":", 1) for line in lines if ":" in line)
    wanted = {name.strip().lower(): value.strip() for name, value in headers.items()}
    disposition = wanted.get("content-disposition", "")
    name = _parameter(disposition, "name")
    if not found or name is None:
        raise EngineError(Code.BAD_ARGUMENTS, "A part of the form has no name; add one to it")
    return Part(name=name, filename=_parameter(disposition, "filename"), data=data)


def _parameter(header: str, name: str) -> str | None:
    message = Message()
    message["content-type"] = header if ";" in header else f"{header};"
    value = message.get_param(name)
    return value if isinstance(value, str) else None
