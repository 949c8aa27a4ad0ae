"""Settings for complete results: nothing in the user's profile may drop rows silently.

Limits still apply: a statement that reaches one fails and says so (ClickHouse docs,
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
COMPLETE_RESULT_SETTINGS: Mapping[str, int | str] = MappingProxyType(
    {
        **{f"{limit}_overflow_mode": "throw" for limit in _LIMITED},
        "read_overflow_mode_leaf": "throw",
        "limit": 0,
        "offset": 0,
        # No cached results, and no rows left out by FINAL.
        "use_query_cache": 0,
        "final": 0,
        # A table of very many columns has long statements, with many names in each.
        "max_query_size": 64 << 20,
        "max_ast_elements": 10_000_000,
        "max_expanded_ast_elements": 10_000_000,
    }
)
"""Settings sent with every statement of this package."""
