"""A change of a job's spec: fields that are set replace; empty fields keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from iscp_dagster.model.declared.sharding import SHARD
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.specs import JobSpec, parse_json_object

_TRIGGER = ("job_type", "schedule", "independent")
_DETAIL = ("priority", "max_versions", "max_bytes")
_CONSUMER = ("type", "columns", "options")


@dataclass(frozen=True, kw_only=True)
class SpecUpdate:
    """The fields of a `JobSpec` to change; None is empty, and keeps the current value.

    The consumer's database, table and job are the job's identity and never change.
    """

    job_type: str | None = None
    schedule: Mapping[str, Any] | None = field(default=None, hash=False)
    independent: bool | None = None
    priority: int | None = None
    max_versions: int | None = None
    max_bytes: int | None = None
    type: str | None = None
    columns: tuple[str, ...] | None = None
    options: Mapping[str, Any] | None = field(default=None, hash=False)
    rebuild: bool | None = None
    """Rebuild the index, as after a change of the consumer."""

    @property
    def empty(self) -> bool:
        return all(getattr(self, spec_field.name) is None for spec_field in fields(self))

    def apply_to(self, spec: JobSpec) -> JobSpec:
        """`spec` with this change. Raises ConfigError for invalid values."""
        trigger = replace(spec.trigger, **self._select_fields(_TRIGGER))
        current = spec.detail.consumer
        consumer = replace(current, **self._select_fields(_CONSUMER))
        if SHARD in current.options:
            # The job's shard cannot be changed.
            options = {**consumer.options, SHARD: current.options[SHARD]}
            consumer = replace(consumer, options=options)
        if self.rebuild or consumer != current:
            consumer = replace(consumer, generation=current.generation + 1)
        detail = replace(spec.detail, consumer=consumer, **self._select_fields(_DETAIL))
        return JobSpec(trigger=trigger, detail=detail)

    def find_differences(self, spec: JobSpec) -> dict[str, tuple[Any, Any]]:
        """The fields of `spec` that this change would alter: (old value, new value) by name."""
        after = self.apply_to(spec)
        parts = (
            (spec.trigger, after.trigger, _TRIGGER),
            (spec.detail, after.detail, _DETAIL),
            (spec.detail.consumer, after.detail.consumer, _CONSUMER),
        )
        pairs = {
            name: (getattr(current, name), getattr(new, name))
            for current, new, names in parts
            for name in names
        }
        return {name: (current, new) for name, (current, new) in pairs.items() if current != new}

    def _select_fields(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @classmethod
    def from_json(cls, value: Any) -> SpecUpdate:
        """Read an object shaped like a job spec's JSON; missing and null fields are empty."""
        outer = parse_json_object("job spec", value, ("trigger", "detail"))
        trigger = parse_json_object("trigger", outer.get("trigger") or {}, _TRIGGER)
        detail = parse_json_object("detail", outer.get("detail") or {}, (*_DETAIL, "consumer"))
        consumer = parse_json_object("consumer", detail.pop("consumer", None) or {}, _CONSUMER)
        columns = consumer.get("columns")
        if columns is not None and (isinstance(columns, str) or not _is_list(columns)):
            raise ConfigError(f"The consumer's columns {columns!r} are not a list of names.")
        values = {**trigger, **detail, **consumer}
        return cls(**{**values, "columns": None if columns is None else tuple(columns)})


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)
