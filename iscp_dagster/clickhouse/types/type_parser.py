"""ClickHouse's type texts, parsed into values (docs: clickhouse.com, "Data types").

Two texts of one type are one value: `Decimal32(2)` is `Decimal(9, 2)`, `Enum('a')` is
`Enum8('a' = 1)`, and the members of a Variant have no order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from iscp_dagster.clickhouse.connect.quoting import quote_identifier, quote_string

TOKEN = re.compile(
    r"""\s*(?:(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>-?\d+)|(?P<text>'(?:[^'\\]|\\.|'')*')
    |(?P<quoted>`(?:[^`\\]|\\.)*`|"(?:[^"\\]|\\.)*")|(?P<mark>[(),=]))""",
    re.VERBOSE | re.DOTALL,
)
ESCAPED = re.compile(r"\\(.)|''", re.DOTALL)
_UNESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}
FLOATS = ("Float32", "Float64", "BFloat16")
DECIMALS = {"Decimal32": 9, "Decimal64": 18, "Decimal128": 38, "Decimal256": 76}
GEO: Mapping[str, str] = MappingProxyType(
    {
        "Point": "Tuple(Float64, Float64)",
        "Ring": "Array(Point)",
        "LineString": "Array(Point)",
        "Polygon": "Array(Ring)",
        "MultiLineString": "Array(LineString)",
        "MultiPolygon": "Array(Polygon)",
    }
)
"""What the geo types are made of."""
ENUM8 = range(-128, 128)


class TypeTextError(ValueError):
    """A text is not a type; the message says where."""


@dataclass(frozen=True, kw_only=True)
class ClickHouseType:
    """A ClickHouse type: `parts` are the types inside it, `names` its tuple or enum members'."""

    name: str
    parts: tuple[ClickHouseType, ...] = ()
    names: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    """Precision and scale, length, or the numbers of an enum's members."""
    zone: str | None = None
    options: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        arguments = ", ".join(_format_arguments(self))
        return f"{self.name}({arguments})" if arguments else self.name

    @property
    def bare(self) -> ClickHouseType:
        """The type without LowCardinality and Nullable around it."""
        if self.name in {"LowCardinality", "Nullable"}:
            return self.parts[0].bare
        return self

    @property
    def fields(self) -> dict[str, ClickHouseType]:
        """The types of a tuple's members by name; none where they have no names."""
        return dict(zip(self.names, self.parts, strict=True)) if self.names else {}

    @property
    def structure(self) -> ClickHouseType:
        """The Array or Tuple that Nested and the geo types stand for; any other type itself."""
        if self.name == "Nested":
            return ClickHouseType(name="Array", parts=(replace(self, name="Tuple"),))
        return parse_type(GEO[self.name]) if self.name in GEO else self


def parse_type(written: str) -> ClickHouseType:
    """The type that `written` names. Raises TypeTextError."""
    tokens = _TokenReader(written)
    parsed = _parse_tokens(tokens)
    if tokens.ahead is not None:
        raise tokens.make_error("the end")
    return parsed


def build_type(name: str, *parts: ClickHouseType) -> ClickHouseType:
    """Build a type from its parts, such as `Nullable(...)` or `Array(...)`."""
    return ClickHouseType(name=name, parts=parts)


class _TokenReader:
    """Reads tokens one by one."""

    def __init__(self, written: str) -> None:
        self.written, self.at = written, 0
        self.ahead: tuple[str, str] | None = None
        self.take()

    def take(self) -> tuple[str, str]:
        """Return the kind and text of the token ahead, and advance."""
        token = self.ahead
        match = TOKEN.match(self.written, self.at)
        if match is None and (rest := self.written[self.at :].strip()):
            raise TypeTextError(f"expected a name, a number or a mark, found {rest[0]!r}")
        self.ahead = match and (str(match.lastgroup), match[str(match.lastgroup)])
        self.at = match.end() if match else len(self.written)
        return token or ("", "")

    def take_punctuation(self, punctuation: str) -> bool:
        """Take `punctuation` if it is ahead; return whether it was."""
        return self.ahead == ("mark", punctuation) and bool(self.take())

    def take_expected(self, kind: str, description: str) -> str:
        if self.ahead is None or self.ahead[0] != kind:
            raise self.make_error(description)
        return self.take()[1]

    def make_error(self, expected: str) -> TypeTextError:
        actual = repr(self.ahead[1]) if self.ahead else "the end"
        return TypeTextError(f"expected {expected}, found {actual}")


def _parse_tokens(tokens: _TokenReader) -> ClickHouseType:
    name = tokens.take_expected("word", "a type's name")
    type_ = ClickHouseType(name=name)
    if not tokens.take_punctuation("("):
        return _normalize_type(type_)
    while not tokens.take_punctuation(")"):
        type_ = _add_argument(type_, tokens)
        if not tokens.take_punctuation(",") and tokens.ahead != ("mark", ")"):
            raise tokens.make_error("',' or ')'")
    return _normalize_type(type_)


def _add_argument(type_: ClickHouseType, tokens: _TokenReader) -> ClickHouseType:
    kind, written = tokens.ahead or ("", "")
    if kind == "number":
        tokens.take()
        return replace(type_, numbers=(*type_.numbers, int(written)))
    if kind == "text":
        tokens.take()
        return _add_text(type_, _unquote_text(written), tokens)
    if type_.name in {"JSON", "Dynamic"}:
        option = tokens.take_expected("word", "an option's name")
        if not tokens.take_punctuation("="):
            raise tokens.make_error("'='")
        value = int(tokens.take_expected("number", "a number"))
        return replace(type_, options=(*type_.options, (option, value)))
    return _add_part(type_, tokens)


def _add_text(type_: ClickHouseType, value: str, tokens: _TokenReader) -> ClickHouseType:
    if not type_.name.startswith("Enum"):
        return replace(type_, zone=value)
    numbers = type_.numbers
    number = numbers[-1] + 1 if numbers else 1
    if tokens.take_punctuation("="):
        number = int(tokens.take_expected("number", "a number"))
    return replace(type_, names=(*type_.names, value), numbers=(*numbers, number))


def _add_part(type_: ClickHouseType, tokens: _TokenReader) -> ClickHouseType:
    """Parse a type, and before it the name that a tuple's member may have."""
    name = ""
    if tokens.ahead and tokens.ahead[0] == "quoted":
        name = _unquote_text(tokens.take()[1])
    elif type_.name in {"Tuple", "Nested"}:
        following = TOKEN.match(tokens.written, tokens.at)
        if following and following.lastgroup == "word":
            name = tokens.take_expected("word", "a member's name")
    part = _parse_tokens(tokens)
    names = (*type_.names, name) if name else type_.names
    return replace(type_, parts=(*type_.parts, part), names=names)


def _unquote_text(written: str) -> str:
    def unescape_match(match: re.Match[str]) -> str:
        return _UNESCAPED.get(match[1], match[1]) if match[1] else "'"

    return ESCAPED.sub(unescape_match, written[1:-1])


def _normalize_type(type_: ClickHouseType) -> ClickHouseType:
    """Return the one value for all texts of the type. Raises TypeTextError if it is impossible."""
    if type_.name in DECIMALS:
        return ClickHouseType(name="Decimal", numbers=(DECIMALS[type_.name], *type_.numbers))
    if type_.name == "Decimal":
        return replace(
            type_, numbers=(*type_.numbers, 0) if len(type_.numbers) == 1 else type_.numbers
        )
    if type_.name == "DateTime64" and not type_.numbers:
        return replace(type_, numbers=(3,))
    if type_.name == "Variant":
        return replace(type_, parts=tuple(sorted(type_.parts, key=str)))
    if type_.name.startswith("Enum"):
        return _normalize_enum(type_)
    if type_.names and len(type_.names) != len(type_.parts):
        raise TypeTextError(f"either all members of a {type_.name} have names or none")
    return type_


def _normalize_enum(type_: ClickHouseType) -> ClickHouseType:
    members = sorted(zip(type_.numbers, type_.names, strict=False))
    numbers, names = tuple(n for n, _ in members), tuple(name for _, name in members)
    if not members or len(set(numbers)) < len(numbers) or len(set(names)) < len(names):
        raise TypeTextError("an Enum needs members with unique names and numbers")
    small = all(number in ENUM8 for number in numbers)
    name = ("Enum8" if small else "Enum16") if type_.name == "Enum" else type_.name
    return replace(type_, name=name, names=names, numbers=numbers)


def _format_arguments(type_: ClickHouseType) -> list[str]:
    if type_.name.startswith("Enum"):
        members = zip(type_.names, type_.numbers, strict=True)
        return [f"{quote_string(name)} = {number}" for name, number in members]
    parts = list(map(str, type_.parts))
    if type_.names:
        parts = [f"{quote_identifier(n)} {p}" for n, p in zip(type_.names, parts, strict=True)]
    zone = [] if type_.zone is None else [quote_string(type_.zone)]
    options = [f"{name}={value}" for name, value in type_.options]
    return [*parts, *map(str, type_.numbers), *zone, *options]
