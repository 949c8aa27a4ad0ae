"""Reads the protocol's messages from the text of protocol.proto, comments included."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from support.paths import ROOT

PROTO = ROOT / "packages/durable-invocations/durable_invocations/protocol/pb/protocol.proto"
_CODE = re.compile(r"// Type: 0x([0-9A-F]+) \+ ([0-9A-F]+)")
_OPEN = re.compile(r"(message|oneof|enum) (\w+) \{")
_FIELD = re.compile(r"(repeated |optional )?([\w.]+) (\w+) = (\d+);")
_COMPLETABLE = re.compile(r"// Completable: (Yes|No)")


@dataclass(frozen=True, kw_only=True)
class Field:
    number: int
    type: str
    name: str
    repeated: bool = False
    explicit: bool = False
    """Whether it is written also with its default: an optional field, or one of several."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A message: its code (None for one that is only nested in others) and its fields."""

    name: str
    code: int | None
    completable: bool
    fields: tuple[Field, ...]


class _Reader:
    def __init__(self) -> None:
        self.shapes: dict[str, Shape] = {}
        self._open: list[tuple[str, str]] = []
        self._fields: list[list[Field]] = []
        self._comments: list[dict[str, int | bool]] = []
        self._pending: dict[str, int | bool] = {}

    def read(self, line: str) -> None:
        """Take one line, stripped."""
        if match := _CODE.match(line):
            self._pending["code"] = int(match[1], 16) + int(match[2], 16)
        elif match := _COMPLETABLE.match(line):
            self._pending["completable"] = match[1] == "Yes"
        elif match := _OPEN.match(line):
            self._begin(match[1], match[2])
        elif line.startswith("}") and self._open:
            self._end()
        elif self._open and self._open[-1][0] != "enum" and (match := _FIELD.match(line)):
            self._add(match)

    def _begin(self, kind: str, name: str) -> None:
        self._open.append((kind, name))
        if kind == "message":
            self._fields.append([])
            self._comments.append(self._pending)
            self._pending = {}

    def _add(self, match: re.Match[str]) -> None:
        label = (match[1] or "").strip()
        explicit = label == "optional" or self._open[-1][0] == "oneof"
        named = {"number": int(match[4]), "type": match[2].rpartition(".")[2], "name": match[3]}
        self._fields[-1].append(Field(**named, repeated=label == "repeated", explicit=explicit))

    def _end(self) -> None:
        kind, name = self._open.pop()
        if kind == "message":
            comments = self._comments.pop()
            self.shapes[name] = Shape(
                name=name,
                code=comments.get("code"),
                completable=bool(comments.get("completable")),
                fields=tuple(self._fields.pop()),
            )


@cache
def shapes() -> dict[str, Shape]:
    """Return every message by its name."""
    reader = _Reader()
    for line in PROTO.read_text().splitlines():
        reader.read(line.strip())
    return reader.shapes


@cache
def coded() -> dict[int, Shape]:
    """Return the messages that are sent by themselves, by their code."""
    return {shape.code: shape for shape in shapes().values() if shape.code is not None}


def code_of(name: str) -> int:
    """Return the code of a message, named without its ending: SetState, Sleep, Start."""
    shape = shapes().get(f"{name}EntryMessage") or shapes()[f"{name}Message"]
    return shape.code
