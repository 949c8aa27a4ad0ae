"""Sentences about rows that differ between an index and its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iscp_dagster.model.declared.schema import DeltaType, Primitive

TEXT = Primitive("string")
LONGEST = 80
"""The most characters that are shown of a key's text."""


@dataclass(frozen=True, kw_only=True)
class RowDescriber:
    """How rows are described: by their key, or by all their values if there is none."""

    identity: Sequence[str]
    tenant_column: str | None
    types: Mapping[str, DeltaType]
    flags: Mapping[str, str]
    """Hidden columns, each with the column that it marks as null or not."""

    def describe(self, sample: Any) -> str:
        """Say which row it is, and what is wrong with it.

        `sample` has the values of `identity` as texts, whether it is `in_source` and `in_index`,
        and the `different` columns; or a whole `row`, and how often it is on each side.
        """
        if "row" in sample:
            times = f"{_format_times(sample['in_source'])} in the source"
            return (
                f"the row {sample['row']} is {times} and {_format_times(sample['in_index'])} in "
                "the index"
            )
        subject = f"the row with {self._format_key(sample['identity'])}"
        if not sample["in_index"]:
            return f"{subject} is missing from the index"
        if not sample["in_source"]:
            return f"{subject} is not in the source"
        columns = dict.fromkeys(self.flags.get(name, name) for name in sample["different"])
        return f"{subject} has another value of {', '.join(columns)} in the index"

    def _format_key(self, values: Sequence[str | None]) -> str:
        pairs = zip(self.identity, values, strict=True)
        visible = [(name, value) for name, value in pairs if name != self.tenant_column]
        return ", ".join(f"{name} = {self._format_value(name, value)}" for name, value in visible)

    def _format_value(self, name: str, value: str | None) -> str:
        if value is None:
            return "NULL"
        short = value if len(value) <= LONGEST else f"{value[:LONGEST]}..."
        return repr(short) if self.types.get(name) == TEXT else short


def _format_times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"
