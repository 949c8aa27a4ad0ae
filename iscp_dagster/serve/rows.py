"""Rows of ClickHouse as GraphQL shows them: read as JSON, each value in its scalar's form."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.serve import scalars
from iscp_dagster.serve.columns import Column

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

JSON_SETTINGS: Mapping[str, int | str] = MappingProxyType(
    {
        "output_format_json_quote_64bit_integers": 1,
        "output_format_json_quote_decimals": 1,
        "output_format_json_quote_denormals": 1,
        "output_format_json_named_tuples_as_objects": 1,
        "output_format_json_escape_forward_slashes": 0,
        # A text that is not UTF-8 would spoil the whole answer.
        "output_format_json_validate_utf8": 1,
        "output_format_decimal_trailing_zeros": 1,
        "date_time_output_format": "iso",
    }
)
"""Settings that make ClickHouse's JSON the scalars' form, except for NaN and infinity."""
_TEXTS = {scalars.INT64, scalars.BIG_INT}
_FLOATS = MappingProxyType({"nan": "NaN", "-nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"})


@dataclass(frozen=True, kw_only=True)
class QueryLimits:
    """What one query of ClickHouse may cost."""

    seconds: float = 20
    rows: int = 10_000
    """The most rows of a result."""
    bytes: int = 64 * 1024 * 1024
    """The most bytes of a result."""
    charge_bytes: Callable[[int], None] = field(default=lambda _: None, repr=False)
    """Called with the bytes that were read; may raise."""

    @property
    def settings(self) -> dict[str, int | float | str]:
        return {
            "max_execution_time": self.seconds,
            "max_result_rows": self.rows,
            "max_result_bytes": self.bytes,
            "result_overflow_mode": "throw",
        }


def render_select_list(columns: Sequence[Column]) -> str:
    """Return the SELECT list that `query_rows` reads the columns from."""
    return ", ".join(column.select_sql for column in columns)


def query_rows(
    endpoint: ClickHouseEndpoint,
    query: str,
    parameters: Mapping[str, str],
    columns: Sequence[Column],
    limits: QueryLimits,
) -> list[dict[str, Any]]:
    """Return the rows of a SELECT of exactly these columns, by their GraphQL names.

    Raises UnavailableError, ClickHouseBusyError (also when it takes too long) and ClickHouseError.
    """
    with endpoint.translate_errors("query an index"):
        answer = _get_client(endpoint).raw_query(
            f"{query}\nFORMAT JSONCompactEachRow",
            parameters=dict(parameters),
            settings={**JSON_SETTINGS, **limits.settings, **endpoint.read_settings},
        )
    limits.charge_bytes(len(answer))
    names = [column.field for column in columns]
    formatters = [_get_formatter(column) for column in columns]
    return [
        {
            name: formatter(value)
            for name, formatter, value in zip(names, formatters, row, strict=True)
        }
        for row in map(json.loads, answer.splitlines())
    ]


def _get_formatter(column: Column) -> Any:
    if column.scalar is scalars.FLOAT64:
        return _format_float
    return _format_int if column.scalar in _TEXTS else _keep_value


def _keep_value(value: Any) -> Any:
    return value


def _format_int(value: Any) -> Any:
    """Write as texts the integers that JSON readers might round; ClickHouse does so for some."""
    if isinstance(value, list):
        return [_format_int(element) for element in value]
    return value if value is None else str(value)


def _format_float(value: Any) -> Any:
    if isinstance(value, list):
        return [_format_float(element) for element in value]
    return _FLOATS.get(value, value) if isinstance(value, str) else value


@lru_cache(maxsize=64)
def _get_client(endpoint: ClickHouseEndpoint) -> Client:
    """Return a client that sends parameters in the body: there may be more than a URL can hold."""
    client = endpoint.connect()
    client.form_encode_query_params = True
    return client
