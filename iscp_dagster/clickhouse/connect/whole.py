"""Answers that are whole: no setting of the user's profile leaves rows out in silence.

A limit stays a limit: where it is met, the statement fails and says so (ClickHouse docs,
"Restrictions on query complexity").
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_LIMITED = (
    "distinct",
    "group_by",
    "join",
    "read",
    "result",
    "set",
    "sort",
    "timeout",
    "transfer",
)
WHOLE: Mapping[str, int | str] = MappingProxyType(
    {
        **{f"{what}_overflow_mode": "throw" for what in _LIMITED},
        "read_overflow_mode_leaf": "throw",
        "limit": 0,
        "offset": 0,
        # Neither an earlier answer, nor fewer rows than a table has.
        "use_query_cache": 0,
        "final": 0,
    }
)
"""What every statement of this package is sent with."""
