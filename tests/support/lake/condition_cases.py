"""A table of values at the edges of their types, and literals to compare them with."""

from __future__ import annotations

from dataclasses import dataclass

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.quoting import quote_string
from iscp_dagster.clickhouse.types.type_parser import parse_type
from iscp_dagster.serve.columns import build_column
from iscp_dagster.serve.comparing import OPERATORS
from iscp_dagster.serve.rows import QueryLimits, query_rows, render_select_list
from iscp_dagster.serve.sql import Parameters, render_condition
from iscp_dagster.serve.where import parse_where


@dataclass(frozen=True)
class Edge:
    """A column of ClickHouse type `type`, kept from Spark's `spark`: its values and literals.

    Values are SQL literals of ClickHouse, each with the same one of Spark; literals are as clients
    write them, each with Spark's.
    """

    name: str
    type: str
    spark: str
    values: tuple[tuple[str, str], ...]
    literals: tuple[tuple[object, str], ...]


def _same(*texts: str, ending: str = "") -> tuple[tuple[str, str], ...]:
    """Texts that Spark has with this ending."""
    return tuple((text, f"{text}{ending}") for text in texts)


def _quoted(*texts: str) -> tuple[tuple[str, str], ...]:
    return _same(*(f"'{text}'" for text in texts))


def _literals(function: str, *texts: str) -> tuple[tuple[str, str], ...]:
    return tuple((text, f"{function}'{text}'") for text in texts)


def _timestamps(*texts: str) -> tuple[tuple[str, str], ...]:
    return tuple((text, f"TIMESTAMP'{text.replace('T', ' ')}'") for text in texts)


def _beside_spark(name: str, type_: str, values: tuple[str, ...], *literals: object) -> Edge:
    """A column of a type that Spark does not have."""
    return Edge(name, type_, "", tuple((v, "") for v in values), tuple((x, "") for x in literals))


DAYS = ("1900-01-01", "1969-12-31", "1970-01-01", "2299-12-31")
MOMENTS = (
    *("1900-01-01 00:00:00", "1969-12-31 23:59:59.999999", "1970-01-01 00:00:00"),
    *("2024-03-31 01:30:00.123456", "2299-12-31 23:59:59.999999"),
)
UUIDS = (
    "00000000-0000-0000-0000-000000000001",
    "80000000-0000-0000-0000-000000000000",
    "12345678-9abc-def0-1234-56789abcdef0",
)

EDGES = (
    Edge(
        "tiny",
        "Nullable(Int8)",
        "tinyint",
        _same("-128", "0", "127"),
        tuple((n, str(n)) for n in (-129, -128, -1, 0, 127, 128, 2147483647)),
    ),
    Edge(
        "long",
        "Nullable(Int64)",
        "bigint",
        _same(str(-(2**63)), "0", str(2**53 + 1), str(2**63 - 1), ending="L"),
        (
            *((str(n), str(n)) for n in (-(2**63), 0, 2**53, 2**53 + 1, 2**63 - 1)),
            # Spark takes a plain literal beyond 64 bits for a constant condition, for null too.
            *((str(n), f"CAST('{n}' AS decimal(38, 0))") for n in (2**63, 10**30)),
        ),
    ),
    Edge(
        "ratio",
        "Nullable(Float64)",
        "double",
        (
            ("nan", "double('NaN')"),
            ("inf", "double('Infinity')"),
            ("-inf", "double('-Infinity')"),
            *_same("-0.0", "0.0", "1.5", "1e308", ending="D"),
        ),
        (
            *((0, "0.0D"), (-0.0, "-0.0D"), (1.5, "1.5D")),
            *((name, f"double('{name}')") for name in ("NaN", "Infinity", "-Infinity")),
        ),
    ),
    Edge(
        "small",
        "Nullable(Float32)",
        "float",
        (("nan", "float('NaN')"), ("0.1", "0.1F"), ("16777216", "16777216F")),
        ((0.1, "0.1D"), (0.10000000149011612, "0.10000000149011612D"), ("NaN", "double('NaN')")),
    ),
    Edge(
        "price",
        "Nullable(Decimal(9, 2))",
        "decimal(9,2)",
        _same("-9999999.99", "-0.01", "0.00", "1.10", "9999999.99"),
        _same("1.1", "1.10", "1.105", "-0.011", "0", "-0.0", "9999999.99", "1e7"),
    ),
    Edge(
        "wide",
        "Nullable(Decimal(38, 10))",
        "decimal(38,10)",
        _quoted("1234567890123456789012345678.0123456789", "-0.0000000001"),
        _same(
            "1234567890123456789012345678.0123456789",
            "-0.0000000001",
            "99999999999999999999999999999",
        ),
    ),
    Edge(
        "name",
        "Nullable(String)",
        "string",
        _quoted("", "a", "A", "ä", "a\u0308", "z", "😀", "\uffff", "it''s", "50% _x"),
        _literals("", "", "a", "A", "ä", "Z", "😀", "\uffff", "50% _x", "nan"),
    ),
    Edge(
        "flag",
        "Nullable(Bool)",
        "boolean",
        _same("true", "false"),
        ((True, "true"), (False, "false")),
    ),
    Edge(
        "day",
        "Nullable(Date32)",
        "date",
        tuple((f"'{day}'", f"DATE'{day}'") for day in DAYS),
        _literals("DATE", "0001-01-01", *DAYS, "9999-12-31"),
    ),
    Edge(
        "moment",
        "Nullable(DateTime64(6, 'UTC'))",
        "timestamp",
        tuple((f"'{text}'", f"TIMESTAMP'{text}Z'") for text in MOMENTS),
        (
            *_timestamps("1969-12-31T23:59:59.999999Z"),
            ("2024-03-31T03:30:00.123456+02:00", "TIMESTAMP'2024-03-31 01:30:00.123456Z'"),
            ("1970-01-01 00:00", "TIMESTAMP'1970-01-01 00:00:00Z'"),
            *_timestamps("0001-01-01T00:00:00Z", "2299-12-31T23:59:59.999999Z"),
            *_timestamps("9999-12-31T00:00:00Z"),
        ),
    ),
    Edge(
        "seconds",
        "Nullable(DateTime('Europe/Berlin'))",
        "timestamp",
        (
            ("toDateTime('2024-03-31 01:30:00', 'UTC')", "TIMESTAMP'2024-03-31 01:30:00Z'"),
            ("toDateTime('1970-01-01 00:00:00', 'UTC')", "TIMESTAMP'1970-01-01 00:00:00Z'"),
        ),
        (
            *_timestamps("2024-03-31T01:30:00Z", "2024-03-31T01:30:00.5Z"),
            *_timestamps("1969-12-31T00:00:00Z", "2200-01-01T00:00:00Z"),
        ),
    ),
    Edge("uuid", "Nullable(UUID)", "string", _quoted(*UUIDS), _literals("", *UUIDS)),
)
"""Of these Spark has every value."""

ONLY_CLICKHOUSE = (
    _beside_spark(
        "nanos",
        "Nullable(DateTime64(9, 'America/New_York'))",
        (
            "toDateTime64('2024-01-01 00:00:00.000000001', 9, 'UTC')",
            "toDateTime64('1969-12-31 23:59:59.999999999', 9, 'UTC')",
            "toDateTime64('2262-04-11 23:47:15.999999999', 9, 'UTC')",
        ),
        *("2024-01-01T00:00:00.000000001Z", "2024-01-01T00:00:00Z"),
        *("1969-12-31T23:59:59.999999999Z", "2299-01-01T00:00:00Z"),
    ),
    _beside_spark("huge", "Nullable(UInt256)", (str(2**256 - 1), "0"), str(2**256 - 1), -1, 0),
    _beside_spark(
        "level",
        "Enum8('low' = 3, 'high' = 1, 'it\\'s' = 2)",
        ("'low'", "'high'", "'it''s'"),
        *("low", "high", "none", "it's"),
    ),
    _beside_spark("code", "FixedString(2)", ("'ab'", "'zz'"), "ab", "a", "abc"),
    _beside_spark(
        "address", "IPv4", ("'10.0.0.2'", "'9.0.0.1'"), "10.0.0.2", "9.0.0.1", "no address"
    ),
    _beside_spark("key", "Int32", ("-2147483648", "7"), 7, -2147483648, 2**40),
    _beside_spark(
        "word",
        "LowCardinality(Nullable(String))",
        ("'x'", "'Y'", "'back\\\\slash'", "'tab\\t'", "'line\\n'", "'nul\\0nul'", "'quote\\''"),
        *("x", "Y", "back\\slash", "tab\t", "line\n", "nul\0nul", "quote'"),
    ),
    _beside_spark(
        "host",
        "Nullable(IPv6)",
        ("'::1'", "'2001:db8::ff'", "'fe80::1'"),
        *("::1", "2001:db8::ff", "10.0.0.1"),
    ),
    _beside_spark(
        "date",
        "Date",
        ("'1970-01-01'", "'2149-06-06'"),
        *("1970-01-01", "1969-12-31", "2149-06-06", "2149-06-07"),
    ),
    _beside_spark(
        "millis",
        "Nullable(DateTime64(3, 'Asia/Kolkata'))",
        ("toDateTime64('2024-01-01 00:00:00.001', 3, 'UTC')",),
        *("2024-01-01T00:00:00.001Z", "2024-01-01T00:00:00.0010001Z"),
        "2024-01-01T05:30:00.0009999+05:30",
    ),
    _beside_spark(
        "brain", "Nullable(BFloat16)", ("0.1", "nan", "3e38"), 0.1, 0.099609375, "NaN", 3e38
    ),
    _beside_spark(
        "exact",
        "Nullable(Decimal(76, 38))",
        (f"'{'9' * 38}.{'9' * 38}'", "'0'", f"'-0.{'0' * 37}1'"),
        *(f"{'9' * 38}.{'9' * 38}", "1e38", f"-0.{'0' * 38}1", 0),
    ),
)


def conditions(edge):
    """Return `where` arguments that ask all there is to ask a column, and their opposites."""
    return [each for where in _asked(edge) for each in (where, {"_not": where})]


def _asked(edge):
    name, literals = edge.name, [literal for literal, _ in edge.literals]
    for literal in literals:
        yield from ({name: {operator: literal}} for operator in OPERATORS)
    yield from ({name: {operator: None}} for operator in OPERATORS)
    some = [literals[0], literals[-1]]
    for listed in ([], some, [*some, None], [None]):
        yield from ({name: {"_in": listed}}, {name: {"_nin": listed}})
    yield from ({name: {"_is_null": True}}, {name: {"_is_null": False}})
    first, unknown = {name: {"_eq": literals[0]}}, {name: {"_eq": None}}
    yield from ({"_or": [first, unknown]}, {"_and": [first, unknown]}, {"_and": []}, {"_or": []})
    yield {"_not": {"_or": [unknown, {name: {"_lt": literals[-1]}}]}}
    yield {name: {"_gte": literals[0], "_lte": literals[-1]}}


def clickhouse_says(endpoint: ClickHouseEndpoint, edge: Edge):
    """Return for each value, and then null, its row and what ClickHouse says to all conditions."""
    column = build_column(edge.name, parse_type(edge.type))
    values = [f"CAST({value}, {quote_string(edge.type)})" for value, _ in edge.values]
    values += ["NULL"] if column.nullable else []
    array = f"CAST([{', '.join(values)}], {quote_string(f'Array({edge.type})')})"
    parameters = Parameters()
    parts = [
        render_condition(parse_where({edge.name: column}, where), parameters)
        for where in conditions(edge)
    ]
    answers = [
        build_column(f"c{number}", parse_type("Nullable(Int64)")) for number in range(len(parts))
    ]
    query = (
        f"SELECT {render_select_list([column])}, {', '.join(parts)} "
        f"FROM (SELECT arrayJoin({array}) AS {edge.name})"
    )
    rows = query_rows(endpoint, query, parameters.values, [column, *answers], QueryLimits())
    assert len(rows) == len(values)
    return [
        (row, [None if row[each.field] is None else bool(int(row[each.field])) for each in answers])
        for row in rows
    ]
