"""A declared event trigger: fires when a row begins, or ceases, to meet a condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.names import check_identifier
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.specs import check_priority

TRIGGER = "trigger"
"""The consumer type of a trigger's job."""
INITIAL = ("skip", "fire")
"""What to do for rows that match when the trigger's job begins."""


@runtime_checkable
class TriggerSource(Protocol):
    """What a trigger can be on: a source table, or a view."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> Any:
        """The underlying `SourceTable`."""

    @property
    def chain(self) -> Sequence[Any]:
        """The `View`s from the source up; none for a table."""

    @property
    def definition(self) -> list[dict[str, Any]]:
        """What determines its rows, as JSON; empty for a table."""


@dataclass(frozen=True)
class Trigger:
    """Fires MATCH when a row begins to meet `match`, and UNMATCH when it ceases to."""

    name: str
    _: KW_ONLY
    on: TriggerSource
    """The source table or view whose rows it looks at."""
    match: str
    """A condition in Spark SQL; NULL counts as not met."""
    unmatch: str | None = None
    """The condition for UNMATCH; None: `match` is not met."""
    columns: Sequence[str] = ()
    """The columns of the events' `data`; the key's are always included. Empty: all."""
    initial: str = "skip"
    """What to do for rows that match when the job begins: `skip` them, or `fire`."""
    to: Sequence[Endpoint | str] = ()
    """The endpoints that get its events, or their names."""
    priority: int = 0
    """Higher runs first."""
    description: str | None = None
    owners: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    auto_register: bool = True
    """Register a job automatically for every tenant that is found."""
    kind: ClassVar[str] = TRIGGER
    placement: ClassVar[None] = None
    """A trigger's job never belongs to a shard: it keeps no table."""

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not isinstance(self.on, TriggerSource):
            raise ConfigError(
                f"Trigger {self.name!r}: on={self.on!r} is neither a source table nor a view; "
                "give one of them, not its name."
            )
        if not self.source.keys:
            raise ConfigError(
                f"Trigger {self.name!r}: its source table {self.source.name!r} has no key, and "
                "events are tracked by key; declare the table's key=."
            )
        self._check_conditions()
        self._check_lists()
        try:
            check_priority(self.priority)
        except ConfigError as error:
            raise ConfigError(f"Trigger {self.name!r}: {error}") from error

    @property
    def shown(self) -> str:
        """Its name for users."""
        return self.name

    @property
    def source(self) -> Any:
        """The underlying `SourceTable`, as it was declared."""
        return self.on.source

    @property
    def definition(self) -> dict[str, Any]:
        """What determines when it fires, as JSON; a change begins another generation."""
        return {"view": self.on.definition, "match": self.match, "unmatch": self.unmatch}

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The names of the endpoints that get its events."""
        return tuple(
            endpoint.name if isinstance(endpoint, Endpoint) else endpoint for endpoint in self.to
        )

    def _check_conditions(self) -> None:
        for option in ("match", "unmatch"):
            condition = getattr(self, option)
            if option == "unmatch" and condition is None:
                continue
            if not isinstance(condition, str) or not condition.strip():
                raise ConfigError(
                    f"Trigger {self.name!r}: {option}={condition!r} is empty; give a condition."
                )
        if self.initial not in INITIAL:
            raise ConfigError(
                f"Trigger {self.name!r}: initial={self.initial!r} is not one of: "
                f"{', '.join(INITIAL)}."
            )

    def _check_lists(self) -> None:
        columns, to = self.columns, self.to
        if not _is_list(columns, str):
            raise ConfigError(
                f"Trigger {self.name!r}: columns={columns!r} is not a list of names; write "
                f"columns=[{columns!r}]."
            )
        if not _is_list(to, Endpoint | str):
            raise ConfigError(
                f"Trigger {self.name!r}: to={to!r} is not a list of endpoints; write to=[{to!r}]."
            )
        object.__setattr__(self, "columns", tuple(columns))
        object.__setattr__(self, "to", tuple(to))


def _check_name(name: Any) -> None:
    if isinstance(name, str) and ":" in name:
        raise ConfigError(
            f"The trigger name {name!r} has a ':', which separates the parts of an event's id; use "
            "letters, digits and _."
        )
    check_identifier(name, "trigger")


def _is_list(value: object, type_: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(entry, type_) for entry in value)
