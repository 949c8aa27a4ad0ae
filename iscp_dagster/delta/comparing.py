"""Values that Spark does not compare, as texts that are equal only where the values are."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

EXACT_JSON = MappingProxyType(
    {
        "ignoreNullFields": "false",
        "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
        "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    }
)
"""Options of `to_json` under which different rows become different texts."""


def comparable(column: Any, kind: str) -> Any:
    """The column; where its type, as Spark says it, has maps: its JSON text.

    A cast to text would not do: with it, {'a': 'b, c -> d'} is {'a': 'b', 'c': 'd'}.
    """
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    if "map<" not in kind:
        return column
    return F.to_json(F.struct(column.alias("value")), dict(EXACT_JSON))
