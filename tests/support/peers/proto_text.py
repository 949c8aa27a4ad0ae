"""Reads the protocol's messages from the text of protocol.proto, comments included."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PROTO = (
    Path(__file__).parents[3]
    / "packages/durable-invocations/durable_invocations/protocol/pb/protocol.proto"
)
_CODE = re.compile(r"// Type: 0x([0-9A-F]+) \+ ([0-9A-F]+)")
_OPEN = re.compile(r"(message|oneof|enum) (\w+) \{")
_FIELD = re.compile(r"(repeated |optional )?([\w.]+) (\w+) = (\d+);")
_SAYS = re.compile(r"// (Completable|Fallible): (Yes|No)")


@dataclass(frozen=True, kw_only=True)
class Field:
    number: int
    type: str
    name: str
    repeated: bool = False
    explicit: bool = False
    """Written even when it holds its default: optional, or one of several."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A message: its code (None for what is only nested in others) and its fields."""

    name: str
    code: int | None
    completable: bool
    fallible: bool
    fields: tuple[Field, ...]


class _Reader:
    def __init__(self) -> None:
        self.shapes: dict[str, Shape] = {}
        self._open: list[tuple[str, str]] = []
        self._fields: list[list[Field]] = []
        self._said: list[dict[str, int | bool]] = []
        self._told: dict[str, int | bool] = {}

    def read(self, line: str) -> None:
        """Take one line, stripped."""
        if found := _CODE.match(line):
            self._told["code"] = int(found[1], 16) + int(found[2], 16)
        elif found := _SAYS.match(line):
            self._told[found[1]] = found[2] == "Yes"
        elif found := _OPEN.match(line):
            self._begin(found[1], found[2])
        elif line.startswith("}") and self._open:
            self._end()
        elif self._open and self._open[-1][0] != "enum" and (found := _FIELD.match(line)):
            self._add(found)

    def _begin(self, what: str, name: str) -> None:
        self._open.append((what, name))
        if what == "message":
            self._fields.append([])
            self._said.append(self._told)
            self._told = {}

    def _add(self, found: re.Match[str]) -> None:
        label = (found[1] or "").strip()
        explicit = label == "optional" or self._open[-1][0] == "oneof"
        named = {"number": int(found[4]), "type": found[2].rpartition(".")[2], "name": found[3]}
        self._fields[-1].append(Field(**named, repeated=label == "repeated", explicit=explicit))

    def _end(self) -> None:
        what, name = self._open.pop()
        if what == "message":
            said = self._said.pop()
            self.shapes[name] = Shape(
                name=name,
                code=said.get("code"),
                completable=bool(said.get("Completable")),
                fallible=bool(said.get("Fallible")),
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
    found = shapes().get(f"{name}EntryMessage") or shapes()[f"{name}Message"]
    return found.code
