"""A declared view: the rows of a source table that meet a predicate, and calculated columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from iscp_dagster.model.declared.images import CONDITION_COLUMNS, IMAGE_COLUMNS
from iscp_dagster.model.declared.names import check_identifier
from iscp_dagster.model.declared.schema import SYSTEM_COLUMNS
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.specs import check_priority

FEED_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")
"""What Delta's change feed has beside the table's columns."""
MARKS = ("_repeats", "_fresh")
"""Columns that a reader of changes adds."""
OF_READERS = "_iscp_"
"""The prefix of readers' other columns."""
TAKEN = frozenset((*SYSTEM_COLUMNS, *IMAGE_COLUMNS, *CONDITION_COLUMNS, *FEED_COLUMNS, *MARKS))
"""Names that no column of a view can have, in lower case."""

Definition = list[dict[str, Any]]
"""What determines a view's rows, as JSON: from the source up, each view's `where` and `columns`."""


@dataclass(frozen=True)
class View:
    """Rows of a source table, or of another view, kept as a changes index named like the view."""

    name: str
    _: KW_ONLY
    of: SourceTable | View
    where: str | None = None
    """A predicate in Spark SQL; a row for which it is NULL is not in the view. None: all rows."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Calculated columns: by name, an expression in Spark SQL over the columns of `of`."""
    types: Mapping[str, str] = field(default_factory=dict)
    """By column, ClickHouse types other than the default (docs/types.md)."""
    nulls: str | Mapping[str, str] | None = None
    """What it has for null arrays, maps and structs, by column or for all; None: as the table."""
    description: str | None = None
    owners: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    """Higher runs first."""
    auto_register: bool = True
    """Register a job automatically for every tenant that is found."""

    def __post_init__(self) -> None:
        check_identifier(self.name, "view")
        if not isinstance(self.of, SourceTable | View):
            raise ConfigError(
                f"View {self.name!r}: of={self.of!r} is neither a source table nor a view; give "
                "one of them, not its name."
            )
        if not self.source.keys:
            raise ConfigError(
                f"View {self.name!r}: its source table {self.source.name!r} has no key, and "
                "changes are tracked by key; declare the table's key=."
            )
        self._check_expressions()
        try:
            check_priority(self.priority)
        except ConfigError as error:
            raise ConfigError(f"View {self.name!r}: {error}") from error

    @property
    def source(self) -> SourceTable:
        """The underlying table."""
        return self.of if isinstance(self.of, SourceTable) else self.of.source

    @property
    def chain(self) -> tuple[View, ...]:
        """The views from the source up, this one last."""
        return (*(self.of.chain if isinstance(self.of, View) else ()), self)

    @property
    def definition(self) -> Definition:
        """What determines the view's rows, from the source up, as JSON."""
        return [{"where": view.where, "columns": dict(view.columns)} for view in self.chain]

    def _check_expressions(self) -> None:
        if self.where is not None and not _is_nonblank(self.where):
            raise ConfigError(
                f"View {self.name!r}: its predicate where={self.where!r} is empty; give a "
                "condition, or leave where= out for all rows."
            )
        if not isinstance(self.columns, Mapping):
            raise ConfigError(
                f"View {self.name!r}: columns={self.columns!r} does not map names to expressions; "
                "write columns={'gross': 'amount * 1.19'}."
            )
        for name, expression in self.columns.items():
            if not _is_nonblank(name) or not _is_nonblank(expression):
                raise ConfigError(
                    f"View {self.name!r}: the calculated column {name!r} is {expression!r}; give "
                    "it a name and an expression."
                )
        if self.where is None and not self.columns:
            raise ConfigError(
                f"View {self.name!r} has neither where= nor columns=; give one of them, or "
                "declare Changes() on its of=."
            )
        parent = self.of.definition if isinstance(self.of, View) else []
        source = self.source
        base_columns = [*source.keys, *([source.tenant] if source.tenant else [])]
        check_calculated(
            f"View {self.name!r}", self.columns, (*base_columns, *list_calculated_columns(parent))
        )


def list_calculated_columns(definition: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The calculated columns of a definition, from the source up."""
    for step in definition:
        yield from step["columns"]


def check_calculated(where: str, columns: Mapping[str, str], available: Sequence[str]) -> None:
    """Reject calculated columns that are named like an existing column. Raises ConfigError.

    Names are compared as Spark does, ignoring case.
    """
    by_folded_name = {column.casefold(): column for column in available}
    for name in columns:
        folded = name.casefold()
        if folded in TAKEN or folded.startswith(OF_READERS):
            hidden = f"{folded!r}, a column that every change has"
        elif folded in by_folded_name:
            hidden = f"{by_folded_name[folded]!r}, a column of its of="
        else:
            by_folded_name[folded] = name
            continue
        raise ConfigError(
            f"{where}: the calculated column {name!r} would hide {hidden}; give it another name."
        )


def _is_nonblank(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
