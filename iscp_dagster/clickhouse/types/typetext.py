"""ClickHouse's type texts, parsed into values (docs: clickhouse.com, "Data types").

Two texts of one type are one value: `Decimal32(2)` is `Decimal(9, 2)`, `Enum('a')` is
`Enum8('a' = 1)`, and the members of a Variant have no order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from iscp_dagster.clickhouse.connect.quoting import ident, text

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
class ChType:
    """A ClickHouse type: `parts` are the types inside it, `names` its tuple or enum members'."""

    name: str
    parts: tuple[ChType, ...] = ()
    names: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    """Precision and scale, length, or the numbers of an enum's members."""
    zone: str | None = None
    options: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        inside = ", ".join(_written(self))
        return f"{self.name}({inside})" if inside else self.name

    @property
    def bare(self) -> ChType:
        """The type without LowCardinality and Nullable around it."""
        if self.name in {"LowCardinality", "Nullable"}:
            return self.parts[0].bare
        return self

    @property
    def fields(self) -> dict[str, ChType]:
        """The types of a tuple's members by name; none where they have no names."""
        return dict(zip(self.names, self.parts, strict=True)) if self.names else {}

    @property
    def structure(self) -> ChType:
        """The Array or Tuple that Nested and the geo types stand for; any other type itself."""
        if self.name == "Nested":
            return ChType(name="Array", parts=(replace(self, name="Tuple"),))
        return parsed(GEO[self.name]) if self.name in GEO else self


def parsed(written: str) -> ChType:
    """The type that `written` names. Raises TypeTextError."""
    tokens = _Tokens(written)
    found = _type(tokens)
    if tokens.ahead is not None:
        raise tokens.wrong("the end")
    return found


def of(name: str, *parts: ChType) -> ChType:
    """Build a type from its parts, such as `Nullable(...)` or `Array(...)`."""
    return ChType(name=name, parts=parts)


class _Tokens:
    """Reads tokens one by one."""

    def __init__(self, written: str) -> None:
        self.written, self.at = written, 0
        self.ahead: tuple[str, str] | None = None
        self.take()

    def take(self) -> tuple[str, str]:
        """Return the kind and text of the token ahead, and advance."""
        taken = self.ahead
        match = TOKEN.match(self.written, self.at)
        if match is None and (rest := self.written[self.at :].strip()):
            raise TypeTextError(f"expected a name, a number or a mark, found {rest[0]!r}")
        self.ahead = match and (str(match.lastgroup), match[str(match.lastgroup)])
        self.at = match.end() if match else len(self.written)
        return taken or ("", "")

    def takes(self, mark: str) -> bool:
        """Take `mark` if it is ahead; return whether it was."""
        return self.ahead == ("mark", mark) and bool(self.take())

    def expect(self, kind: str, what: str) -> str:
        if self.ahead is None or self.ahead[0] != kind:
            raise self.wrong(what)
        return self.take()[1]

    def wrong(self, wanted: str) -> TypeTextError:
        found = repr(self.ahead[1]) if self.ahead else "the end"
        return TypeTextError(f"expected {wanted}, found {found}")


def _type(tokens: _Tokens) -> ChType:
    name = tokens.expect("word", "a type's name")
    known = ChType(name=name)
    if not tokens.takes("("):
        return _normal(known)
    while not tokens.takes(")"):
        known = _with_argument(known, tokens)
        if not tokens.takes(",") and tokens.ahead != ("mark", ")"):
            raise tokens.wrong("',' or ')'")
    return _normal(known)


def _with_argument(known: ChType, tokens: _Tokens) -> ChType:
    kind, written = tokens.ahead or ("", "")
    if kind == "number":
        tokens.take()
        return replace(known, numbers=(*known.numbers, int(written)))
    if kind == "text":
        tokens.take()
        return _with_text(known, _unquoted(written), tokens)
    if known.name in {"JSON", "Dynamic"}:
        option = tokens.expect("word", "an option's name")
        if not tokens.takes("="):
            raise tokens.wrong("'='")
        value = int(tokens.expect("number", "a number"))
        return replace(known, options=(*known.options, (option, value)))
    return _with_part(known, tokens)


def _with_text(known: ChType, value: str, tokens: _Tokens) -> ChType:
    if not known.name.startswith("Enum"):
        return replace(known, zone=value)
    numbers = known.numbers
    number = numbers[-1] + 1 if numbers else 1
    if tokens.takes("="):
        number = int(tokens.expect("number", "a number"))
    return replace(known, names=(*known.names, value), numbers=(*numbers, number))


def _with_part(known: ChType, tokens: _Tokens) -> ChType:
    """Parse a type, and before it the name that a tuple's member may have."""
    name = ""
    if tokens.ahead and tokens.ahead[0] == "quoted":
        name = _unquoted(tokens.take()[1])
    elif known.name in {"Tuple", "Nested"}:
        after = TOKEN.match(tokens.written, tokens.at)
        if after and after.lastgroup == "word":
            name = tokens.expect("word", "a member's name")
    part = _type(tokens)
    names = (*known.names, name) if name else known.names
    return replace(known, parts=(*known.parts, part), names=names)


def _unquoted(written: str) -> str:
    def plain(match: re.Match[str]) -> str:
        return _UNESCAPED.get(match[1], match[1]) if match[1] else "'"

    return ESCAPED.sub(plain, written[1:-1])


def _normal(known: ChType) -> ChType:
    """Return the one value for all texts of the type. Raises TypeTextError if it is impossible."""
    if known.name in DECIMALS:
        return ChType(name="Decimal", numbers=(DECIMALS[known.name], *known.numbers))
    if known.name == "Decimal":
        return replace(
            known, numbers=(*known.numbers, 0) if len(known.numbers) == 1 else known.numbers
        )
    if known.name == "DateTime64" and not known.numbers:
        return replace(known, numbers=(3,))
    if known.name == "Variant":
        return replace(known, parts=tuple(sorted(known.parts, key=str)))
    if known.name.startswith("Enum"):
        return _enum(known)
    if known.names and len(known.names) != len(known.parts):
        raise TypeTextError(f"either all members of a {known.name} have names or none")
    return known


def _enum(known: ChType) -> ChType:
    members = sorted(zip(known.numbers, known.names, strict=False))
    numbers, names = tuple(n for n, _ in members), tuple(name for _, name in members)
    if not members or len(set(numbers)) < len(numbers) or len(set(names)) < len(names):
        raise TypeTextError("an Enum needs members with unique names and numbers")
    small = all(number in ENUM8 for number in numbers)
    name = ("Enum8" if small else "Enum16") if known.name == "Enum" else known.name
    return replace(known, name=name, names=names, numbers=numbers)


def _written(type_: ChType) -> list[str]:
    if type_.name.startswith("Enum"):
        members = zip(type_.names, type_.numbers, strict=True)
        return [f"{text(name)} = {number}" for name, number in members]
    parts = list(map(str, type_.parts))
    if type_.names:
        parts = [f"{ident(n)} {p}" for n, p in zip(type_.names, parts, strict=True)]
    zone = [] if type_.zone is None else [text(type_.zone)]
    options = [f"{name}={value}" for name, value in type_.options]
    return [*parts, *map(str, type_.numbers), *zone, *options]
