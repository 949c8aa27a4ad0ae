"""What a user specifies for a job: when to iterate, and how."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from iscp_dagster.model.errors import ConfigError


class _Empty:
    """A field that was not given."""

    def __repr__(self) -> str:
        return "EMPTY"


EMPTY: Any = _Empty()
"""The value of a field that was not given, until `_fill` sets its default."""


def _fill(record: Any, defaults: Mapping[str, Any]) -> None:
    """Fill a frozen dataclass's EMPTY fields with `defaults`; its `set_fields` name the others."""
    set_fields = frozenset(name for name in defaults if getattr(record, name) is not EMPTY)
    for name in set(defaults) - set_fields:
        object.__setattr__(record, name, defaults[name])
    object.__setattr__(record, "set_fields", set_fields)


MOST_PRIORITY = 2**31 - 1
"""The highest priority; negated, the lowest: every database and JSON reader can hold it."""
DEFAULT_TYPE = "default"
"""The trigger that keeps the jobs of a table in step with each other."""


@dataclass(frozen=True, kw_only=True)
class TriggerSpec:
    """The rules by which the runner triggers iterations of a job.

    `schedule` (JSON) holds the settings of the job type. `independent` lets a default job iterate
    by itself, so that the table's other jobs never hold it up.
    """

    job_type: str = EMPTY
    """Empty: `default`."""
    schedule: Mapping[str, Any] = field(default=EMPTY, hash=False)
    independent: bool = EMPTY
    """Empty: False."""
    set_fields: frozenset[str] = field(init=False, compare=False, repr=False)
    """The fields that were not left empty."""

    def __post_init__(self) -> None:
        _fill(self, {"job_type": DEFAULT_TYPE, "schedule": {}, "independent": False})
        _check_type("job_type", self.job_type, str)
        _check_type("schedule", self.schedule, Mapping)
        _check_type("independent", self.independent, bool)
        if not self.job_type:
            raise ConfigError("The trigger's job_type is empty; leave it out for the default.")

    def to_json(self) -> dict[str, Any]:
        return {
            "job_type": self.job_type,
            "schedule": dict(self.schedule),
            "independent": self.independent,
        }

    @classmethod
    def from_json(cls, value: Any) -> TriggerSpec:
        """Read what `to_json` gave; a field left out has its default. Raises ConfigError."""
        return cls(**parse_json_object("trigger", value, ("job_type", "schedule", "independent")))


@dataclass(frozen=True, kw_only=True)
class ConsumerInfo:
    """The consumer of a job's data, and the columns it gets (none named: all).

    `type` is an index kind or the import path of a consumer; `options` (JSON) are its settings,
    such as `{"text": ["doc"]}`.
    """

    type: str
    table: str
    db: str
    job: str
    columns: tuple[str, ...] = EMPTY
    options: Mapping[str, Any] = field(default=EMPTY, hash=False)
    """Empty for a declared index: as declared."""
    generation: int = 0
    """How often it was changed or rebuilt; every generation of an index has its own tables."""
    set_fields: frozenset[str] = field(init=False, compare=False, repr=False)
    """The fields that were not left empty."""

    def __post_init__(self) -> None:
        _fill(self, {"columns": (), "options": {}})
        for name in ("type", "table", "db", "job"):
            check_printable_name(f"consumer's {name}", getattr(self, name))
        if isinstance(self.generation, bool) or not isinstance(self.generation, int):
            raise ConfigError(
                f"The consumer's generation {self.generation!r} is not a whole number."
            )
        object.__setattr__(self, "columns", tuple(self.columns))
        for column in self.columns:
            check_printable_name("consumer's column", column)
        _check_type("consumer's options", self.options, Mapping)
        object.__setattr__(self, "options", _to_json_value("consumer's options", self.options))

    def to_json(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "table": self.table,
            "db": self.db,
            "job": self.job,
            "columns": list(self.columns),
            "options": dict(self.options),
            "generation": self.generation,
        }

    @classmethod
    def from_json(cls, value: Any) -> ConsumerInfo:
        """Read what `to_json` gave. Raises ConfigError."""
        required = ("type", "table", "db", "job")
        optional = ("columns", "options", "generation")
        fields = parse_json_object("consumer", value, (*required, *optional), required)
        columns = fields.get("columns", ())
        if isinstance(columns, str) or not isinstance(columns, list | tuple):
            raise ConfigError(f"The consumer's columns {columns!r} are not a list of names.")
        return cls(**fields)


@dataclass(frozen=True, kw_only=True)
class IterationDetail:
    """How the scheduler executes a job's iterations; a higher `priority` runs first.

    `max_versions` and `max_bytes` (as written in the lake) bound one iteration, so that a long
    backlog is worked off in steps; 0: the deployment's bound.
    """

    priority: int = EMPTY
    """Empty: 0."""
    consumer: ConsumerInfo
    max_versions: int = EMPTY
    max_bytes: int = EMPTY
    set_fields: frozenset[str] = field(init=False, compare=False, repr=False)
    """The fields that were not left empty."""

    def __post_init__(self) -> None:
        _fill(self, {"priority": 0, "max_versions": 0, "max_bytes": 0})
        _check_type("consumer", self.consumer, ConsumerInfo)
        for name in ("max_versions", "max_bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"The {name} {value!r} is not a whole number.")
            if value < 0:
                raise ConfigError(f"The {name} {value} is below 0.")
        check_priority(self.priority)

    def to_json(self) -> dict[str, Any]:
        return {
            "priority": self.priority,
            "consumer": self.consumer.to_json(),
            "max_versions": self.max_versions,
            "max_bytes": self.max_bytes,
        }

    @classmethod
    def from_json(cls, value: Any) -> IterationDetail:
        """Read what `to_json` gave. Raises ConfigError."""
        names = ("priority", "consumer", "max_versions", "max_bytes")
        fields = parse_json_object("detail", value, names, ("consumer",))
        return cls(**{**fields, "consumer": ConsumerInfo.from_json(fields["consumer"])})


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """Trigger and detail; stored as JSON in `job_spec`."""

    trigger: TriggerSpec = field(default_factory=TriggerSpec)
    detail: IterationDetail

    def to_json(self) -> dict[str, Any]:
        return {"trigger": self.trigger.to_json(), "detail": self.detail.to_json()}

    @classmethod
    def from_json(cls, value: Any) -> JobSpec:
        """Read what `to_json` gave. Raises ConfigError."""
        fields = parse_json_object("job spec", value, ("trigger", "detail"), ("detail",))
        return cls(
            trigger=TriggerSpec.from_json(fields.get("trigger", {})),
            detail=IterationDetail.from_json(fields["detail"]),
        )


def check_priority(priority: Any) -> None:
    """Raise ConfigError unless it is a priority within bounds."""
    is_integer = isinstance(priority, int) and not isinstance(priority, bool)
    if not is_integer:
        raise ConfigError(f"The priority {priority!r} is not a whole number.")
    if abs(priority) > MOST_PRIORITY:
        raise ConfigError(
            f"The priority {priority} is out of bounds; use one from -{MOST_PRIORITY} to "
            f"{MOST_PRIORITY}."
        )


def check_printable_name(what: str, name: Any) -> str:
    """`name` if it is non-empty text that prints on one line. Raises ConfigError if not."""
    if isinstance(name, str) and name and name.isprintable():
        return name
    raise ConfigError(f"The {what} {name!r} is not a name; use printable text.")


def _to_json_value(what: str, value: Any) -> Any:
    """The value as JSON returns it, so that equivalent values are equal."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"The {what} {value!r} are not JSON: {error}.") from error


def _check_type(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise ConfigError(f"The {name} {value!r} is not a {kind.__name__.lower()}.")


def parse_json_object(
    what: str, value: Any, allowed: Iterable[str], required: Iterable[str] = ()
) -> dict[str, Any]:
    """The fields of a JSON object. Raises ConfigError for an unknown or a missing one."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"The {what} {value!r} is not a JSON object.")
    if unknown := sorted(set(map(str, value)) - set(allowed)):
        fields = ", ".join(allowed)
        raise ConfigError(f"The {what} has an unknown field {unknown[0]!r}; it has: {fields}.")
    if missing := sorted(set(required) - set(value)):
        raise ConfigError(f"The {what} lacks the field {missing[0]!r}.")
    return dict(value)
