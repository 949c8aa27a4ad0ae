"""Delta types kept as ClickHouse types: which values fit, and which are refused."""

from __future__ import annotations

import datetime as dt
import decimal
from dataclasses import dataclass
from typing import Any

from iscp_dagster.model.declared.schema import (
    Array,
    Decimal,
    DeltaField,
    DeltaType,
    Map,
    Primitive,
    Struct,
)

D = decimal.Decimal
UTC = dt.timezone.utc
NAN, INF = float("nan"), float("inf")
BIG = 10 * 1024 * 1024
UUID = "61f0c404-5cb3-11e7-907b-a6006ad3dba0"
NIL = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True)
class Case:
    """A column of `source`, kept as `asked` (None: by default)."""

    source: DeltaType
    asked: str | None
    held: tuple[Any, ...]
    refused: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.source} as {self.asked or 'itself'}"


def day(year, month=1, day_=1):
    return dt.date(year, month, day_)


def at(*parts):
    return dt.datetime(*parts, tzinfo=UTC)


def ntz(*parts):
    return dt.datetime(*parts)  # noqa: DTZ001 - a time without zone


def span(bits, *, signed):
    low = -(2 ** (bits - 1)) if signed else 0
    return low, low + 2**bits - 1


LONG, DOUBLE, FLOAT, STRING = (Primitive(n) for n in ("long", "double", "float", "string"))
BINARY, DATE, VARIANT, BOOLEAN = (Primitive(n) for n in ("binary", "date", "variant", "boolean"))
STAMP, NTZ = Primitive("timestamp"), Primitive("timestamp_ntz")
WIDE = Decimal(38, 10)
LONGS = span(64, signed=True)


def integers():
    widths = {"byte": 8, "short": 16, "integer": 32, "long": 64}
    for name, bits in widths.items():
        yield Case(Primitive(name), None, (*span(bits, signed=True), 0, None))
    for sign in ("", "U"):
        for bits in (8, 16, 32, 64):
            low, high = span(bits, signed=not sign)
            held = (max(low, LONGS[0]), min(high, LONGS[1]), 0, None)
            beyond = (low - 1, high + 1)
            refused = tuple(each for each in beyond if LONGS[0] <= each <= LONGS[1])
            yield Case(LONG, f"{sign}Int{bits}", held, refused)
        for bits in (128, 256):
            held = (0 if sign else LONGS[0], LONGS[1], None)
            yield Case(LONG, f"{sign}Int{bits}", held, (-1,) if sign else ())
    yield Case(Primitive("byte"), "UInt8", (0, 127, None), (-1, -128))
    yield Case(LONG, "Float64", (2**53, -(2**53), None), (2**53 + 1, LONGS[0] + 1))
    yield Case(LONG, "Float32", (2**24, None), (2**24 + 1,))
    yield Case(LONG, "BFloat16", (256, -1, None), (257,))
    yield Case(LONG, "Bool", (0, 1, None), (2, -1))
    yield Case(LONG, "String", (*LONGS, 0, None))
    for asked in ("Decimal(20, 1)", "Dynamic", "Variant(Int64, String)"):
        yield Case(LONG, asked, (*LONGS, None))
    yield Case(LONG, "Decimal(5, 2)", (999, -999, None), (1000, LONGS[1]))
    yield Case(LONG, "LowCardinality(UInt16)", (0, 65535, None), (65536,))


def others():
    names = ("Int8", "UInt8", "Int16", "UInt64", "Int128", "UInt256", "String", "Dynamic")
    for asked in (None, *names):
        yield Case(BOOLEAN, asked, (True, False, None))
    yield Case(BINARY, None, (b"", b"\xff\x00", None))
    yield Case(BINARY, "FixedString(3)", (b"\xff\x00\x00", b"\x00\x00\x00", None), (b"ab", b"abcd"))
    yield Case(BINARY, "LowCardinality(String)", (b"", b"\xff", None))
    yield Case(BINARY, "Dynamic", (b"", b"\xff", None))
    extremes = (D("-9999999999999999999999999999.9999999999"), D("0.0000000001"), D(0), None)
    for asked in (None, "Decimal(76, 20)", "String", "Dynamic"):
        yield Case(WIDE, asked, extremes)
    yield Case(WIDE, "Decimal(9, 2)", (D("9999999.99"), D("-0.01"), None), (D("0.001"), D(10**7)))
    yield Case(WIDE, "UInt8", (D(255), D(0), None), (D(256), D(-1), D("0.5")))
    yield Case(WIDE, "Int64", (D(2**63 - 1), D(-(2**63)), None), (D(2**63), D("0.1")))
    for bits in (128, 256):
        yield Case(Decimal(38, 0), f"Int{bits}", (D(10**38 - 1), D(1 - 10**38), None))
        yield Case(Decimal(38, 0), f"UInt{bits}", (D(10**38 - 1), D(0), None), (D(-1),))
    yield Case(Decimal(5, 2), "UInt16", (D(999), None), (D("9.99"),))


def floats():
    edges = (NAN, INF, -INF, -0.0, 0.0, None)
    yield Case(FLOAT, None, (*edges, 3.4028234663852886e38, 1.401298464324817e-45))
    yield Case(FLOAT, "Float64", (*edges, 3.4028234663852886e38, 1.401298464324817e-45))
    yield Case(DOUBLE, None, (*edges, 1.7976931348623157e308, 5e-324, 0.1))
    yield Case(DOUBLE, "Float32", (*edges, 0.5, 2.0**-149), (0.1, 1e300, 5e-324, 2.0**24 + 1))
    yield Case(DOUBLE, "BFloat16", (*edges, 0.5, 256.0, 2.0**-133), (0.1, 257.0, 1e300, 2.0**-149))
    yield Case(FLOAT, "BFloat16", (*edges, 1.5), (0.10000000149011612, 257.0))
    for asked in ("String", "LowCardinality(String)", "Dynamic", "Variant(String, Float64)"):
        yield Case(DOUBLE, asked, (*edges, 1.7976931348623157e308, 5e-324, 0.1))


def strings():
    any_text = ("", "é😀", "\0x", "x" * BIG, b"\xff\xfe", None)
    for asked in (None, "LowCardinality(String)", "Dynamic"):
        yield Case(STRING, asked, any_text)
    yield Case(STRING, "Variant(String, UInt64)", ("12", *any_text))
    held = ("abcd", "😀", "\0\0\0\0", b"\xff\0\0\0", None)
    yield Case(STRING, "FixedString(4)", held, ("", "abc", "abcde"))
    yield Case(STRING, "LowCardinality(FixedString(2))", ("ab", "é", None), ("abc",))
    odd = ("", UUID.replace("-", ""), b"\xff" * 36)
    wrong = (*odd, UUID[:-1], UUID + "0", "{" + UUID + "}", UUID + "\n")
    most, mixed = "f" * 8 + "-ffff-ffff-ffff-" + "f" * 12, UUID[:20].upper() + UUID[20:]
    yield Case(STRING, "UUID", (UUID, NIL, most, UUID.upper(), mixed, None), wrong)
    yield Case(STRING, "LowCardinality(UUID)", (UUID, NIL, mixed, None), wrong)
    wrong = ("", "1.2.3", "01.2.3.4", "256.1.1.1", "1.2.3.4 ", "::1", "1.2.3.4\n")
    yield Case(STRING, "IPv4", ("0.0.0.0", "255.255.255.255", "1.20.3.4", None), wrong)
    respelled = ("::FFFF", "0:0:0:0:0:0:0:1", "::ffff:102:304")
    wrong = ("", "1.2.3.4", *respelled, "fe80::1%eth0", "x", b"\xff")
    held = ("::", "::1", "2001:db8::1", "::ffff:1.2.3.4", "::1.2.3.4", ":".join(["ffff"] * 8), None)
    yield Case(STRING, "IPv6", held, wrong)
    enum = "Enum8('' = -128, 'it\\'s' = 1, '😀' = 127)"
    yield Case(STRING, enum, ("", "it's", "😀", None), ("other", "IT'S", "1"))
    yield Case(STRING, "Enum16('a' = -32768, 'b' = 32767)", ("a", "b", None), ("", "c"))
    yield from (Case(each, "JSON", *JSON) for each in (STRING, VARIANT))
    yield Case(STRING, "JSON(max_dynamic_paths=1)", JSON[0], JSON[1])
    yield Case(VARIANT, None, ('{"a":null}', "null", "1.50", '"x"', "[]", None))
    yield Case(VARIANT, "LowCardinality(String)", ("true", "1", None))


TIMES = (
    *("2020-01-01 00:00:00", "2020-01-01T00:00:00", "2020-01-01 00:00:00.12", "2020-1-1"),
    *("2020/01/01", "2020:01:01", "2200-01-01", "1969-12-31", "2020-02-30", "2020-01-01.5"),
    *("2020-01-01 24:00:00", "9999-12-31 24:00:00"),
)
JSON = (
    (
        "{}",
        '{"b":1,"a":[1,2,null],"c":{"d":"x"},"e":[{"f":true},{}],"g":[],"h":[1.5,2]}',
        '{"n":1.0,"m":-0.5,"k":18446744073709551615,"l":-9223372036854775808,"x":1E2}',
        '{"d":"2020-01-01","t":"2020-01-01T00:00:00Z","u":"12","e":"😀\\u0000","f":""}',
        None,
    ),
    (
        *("", "[1]", "1", "null", "{", '{"a":null}', '{"a":{}}', '{"a":{"b":null}}'),
        *('{"a.b":1}', '{"a":1,"a":2}', '{"a":18446744073709551616}', '{"a":[true,1]}'),
        *('{"a":0.12345678901234567890}', '{"a":1e400}', '{"a":NaN}', '{"a":[1,"x"]}'),
        *(f'{{"a":["x",{{"t":"{text}"}}]}}' for text in TIMES),
        *(f'{{"a":"{text}"}}' for text in TIMES),
        *('{"a":["2020-01-01","x"]}', '{"a":[null,[]]}', '{"a":[{},null]}'),
        *('{"a":[[9007199254740993],[1.5]]}', '{"a":[[true],[1]]}', '{"a":[[],1]}'),
        *('{"a":"\\ud800"}', '{"a":[{"b":null}]}', '{"a":[1.5,9007199254740993]}', b'{"a":"\xff"}'),
    ),
)


def times():
    beyond = (day(1899, 12, 31), day(2300), day(9999, 12, 31), day(1))
    yield Case(DATE, None, (day(1900), day(2299, 12, 31), day(1969, 12, 31), None), beyond)
    held = (day(1970), day(2149, 6, 6), None)
    yield Case(DATE, "Date", held, (day(1969, 12, 31), day(2149, 6, 7), day(9999)))
    yield Case(DATE, "LowCardinality(Date)", held, (day(1969, 12, 31),))
    ends = (day(1), day(9999, 12, 31), day(1970), None)
    for asked in ("Int32", "Int64", "String", "LowCardinality(String)"):
        yield Case(DATE, asked, ends)
    yield Case(DATE, "Dynamic", (day(1900), None), (day(9999),))
    for type_, make, zone in ((STAMP, at, "Asia/Tokyo"), (NTZ, ntz, "UTC")):
        first, last = make(1900, 1, 1), make(2299, 12, 31, 23, 59, 59, 999999)
        late = make(9999, 12, 31, 23, 59, 59, 999999)
        before = make(1969, 12, 31, 23, 59, 59, 999999)
        beyond = (late, make(2300, 1, 1), make(1899, 12, 31, 23, 59, 59, 999999), make(1, 1, 1))
        half = make(2020, 2, 29, 12, 30, 15, 500000)
        for asked in (None, *(f"DateTime64({digits}, '{zone}')" for digits in (6, 7, 8))):
            yield Case(type_, asked, (first, last, before, None), beyond)
        top = make(2262, 4, 11, 23, 47, 16, 854775)
        nano = make(2262, 4, 11, 23, 47, 16, 854776)
        yield Case(type_, f"DateTime64(9, '{zone}')", (first, top, None), (last, nano, *beyond))
        yield Case(type_, f"DateTime64(3, '{zone}')", (first, half, None), (before, *beyond))
        yield Case(type_, f"DateTime64(0, '{zone}')", (first, None), (half,))
        seconds = (make(1970, 1, 1), make(2106, 2, 7, 6, 28, 15), None)
        wrong = (half, make(1969, 12, 31, 23, 59, 59), make(2106, 2, 7, 6, 28, 16), late)
        yield Case(type_, f"DateTime('{zone}')", seconds, wrong)
        yield Case(type_, f"LowCardinality(DateTime('{zone}'))", seconds, wrong)
        for asked in ("Int64", "String"):
            yield Case(type_, asked, (make(1, 1, 1), late, before, half, None))
        yield Case(type_, "Dynamic", (first, last, None), beyond)


def field(name, type_, *, nullable=True):
    return DeltaField(name=name, type=type_, nullable=nullable)


POINT = Struct((field("x", DOUBLE), field("y", DOUBLE)))
PAIR = Struct((field("a b", LONG), field("c", Array(element=STRING))))
P, Q = {"x": 1.5, "y": -0.0}, {"x": INF, "y": 1e300}


def containers():
    longs, texts = Array(element=LONG), Array(element=STRING)
    yield Case(longs, None, ([], [1, None], [*LONGS]), (None,))
    yield Case(Array(element=LONG, nullable=False), None, ([], [1]), (None,))
    held = ([], [255, None, 0], [1] * 1000)
    yield Case(longs, "Array(UInt8)", held, ([1, 256], [None, -1], None))
    yield Case(longs, "Array(Dynamic)", ([], [1, None]))
    yield Case(texts, "Array(LowCardinality(String))", ([], ["", None, "😀"]), (None,))
    yield Case(texts, "Array(UUID)", ([], [UUID, None, UUID.upper()]), (["x"],))
    yield Case(texts, "Array(Enum8('a', 'b'))", ([], ["b", None]), (["c"],))
    nested = Array(element=longs)
    yield Case(nested, None, ([], [[]], [[1, None], [2]]), ([None], [[1], None]))
    counts = Map(key=STRING, value=LONG)
    yield Case(counts, None, ([], [("a", 1), ("", None)]), (None,))
    pairs = [(UUID.upper(), 1), (NIL, 2)]
    yield Case(counts, "Map(UUID, Decimal(20, 0))", ([], pairs), ([("x", 1)],))
    lists, wrong = Map(key=DATE, value=longs), ([(day(2020), None)], [(day(9999), [])])
    yield Case(lists, None, ([], [(day(2020), [1, None])]), wrong)
    pair = {"a b": 1, "c": ["x", None]}
    yield Case(PAIR, None, (pair, {"a b": None, "c": []}), (None, {"a b": 1, "c": None}))
    asked = "Tuple(`a b` UInt8, c Array(FixedString(1)))"
    yield Case(PAIR, asked, (pair,), ({"a b": -1, "c": []}, {"a b": 1, "c": ["xy"]}, None))
    yield Case(PAIR, "Tuple(Int256, Array(String))", (pair, {"a b": None, "c": []}))
    pairs = Array(element=PAIR)
    wrong = ([None], [pair, None], [{"a b": 1, "c": None}])
    yield Case(pairs, None, ([], [pair, {"a b": None, "c": []}]), wrong)
    wrong = ([{"a b": 256, "c": []}], None)
    yield Case(pairs, "Nested(`a b` UInt8, c Array(String))", ([], [pair]), wrong)
    yield Case(POINT, "Point", (P, Q), (None, {"x": None, "y": 1.0}))
    ring = Array(element=POINT)
    for asked in ("Ring", "LineString", "Array(Tuple(x Float64, y Float64))"):
        yield Case(ring, asked, ([], [P, Q]), ([P, None],))
    polygon = Array(element=ring)
    for asked in ("Polygon", "MultiLineString"):
        yield Case(polygon, asked, ([], [[]], [[P], [Q, P]]), ([None],))
    yield Case(Array(element=polygon), "MultiPolygon", ([], [[[P, Q]], []]), (None,))
    yield Case(POINT, "Tuple(BFloat16, Float32)", (P,), ({"x": 0.1, "y": 0.0},))
    deep = Struct((field("m", Map(key=STRING, value=PAIR)), field("v", VARIANT), field("t", STAMP)))
    full = {"m": [("k", pair)], "v": '{"a":1}', "t": at(2020, 1, 1)}
    wrong = ({"m": None, "v": None, "t": None}, {**full, "t": at(9999, 1, 1)})
    yield Case(deep, None, (full, {"m": [], "v": None, "t": None}), wrong)
    yield Case(
        deep,
        "Tuple(m Map(String, Tuple(UInt8, Array(String))), v LowCardinality(String), t String)",
        (full, {"m": [], "v": None, "t": at(9999, 1, 1)}),
        ({**full, "m": [("k", {"a b": 256, "c": []})]},),
    )


CASES = [*integers(), *others(), *floats(), *strings(), *times(), *containers()]
