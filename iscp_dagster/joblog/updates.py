"""A change of a job's spec: given fields replace, empty ones keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from iscp_dagster.model.declared.sharding import SHARD
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.specs import JobSpec, json_object

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
        return all(getattr(self, each.name) is None for each in fields(self))

    def applied(self, spec: JobSpec) -> JobSpec:
        """`spec` with this change. Raises ConfigError for values that no spec may have."""
        trigger = replace(spec.trigger, **self._named(_TRIGGER))
        held = spec.detail.consumer
        consumer = replace(held, **self._named(_CONSUMER))
        if SHARD in held.options:
            # The job's shard cannot be changed.
            options = {**consumer.options, SHARD: held.options[SHARD]}
            consumer = replace(consumer, options=options)
        if self.rebuild or consumer != held:
            consumer = replace(consumer, generation=held.generation + 1)
        detail = replace(spec.detail, consumer=consumer, **self._named(_DETAIL))
        return JobSpec(trigger=trigger, detail=detail)

    def differences(self, spec: JobSpec) -> dict[str, tuple[Any, Any]]:
        """The fields of `spec` that this change would alter: (old value, new value) by name."""
        after = self.applied(spec)
        parts = (
            (spec.trigger, after.trigger, _TRIGGER),
            (spec.detail, after.detail, _DETAIL),
            (spec.detail.consumer, after.detail.consumer, _CONSUMER),
        )
        pairs = {
            name: (getattr(held, name), getattr(new, name))
            for held, new, names in parts
            for name in names
        }
        return {name: (held, new) for name, (held, new) in pairs.items() if held != new}

    def _named(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @classmethod
    def from_json(cls, value: Any) -> SpecUpdate:
        """Read an object shaped like a job spec's JSON; missing and null fields are empty."""
        outer = json_object("job spec", value, ("trigger", "detail"))
        trigger = json_object("trigger", outer.get("trigger") or {}, _TRIGGER)
        detail = json_object("detail", outer.get("detail") or {}, (*_DETAIL, "consumer"))
        consumer = json_object("consumer", detail.pop("consumer", None) or {}, _CONSUMER)
        columns = consumer.get("columns")
        if columns is not None and (isinstance(columns, str) or not _is_list(columns)):
            raise ConfigError(f"The consumer's columns {columns!r} are not a list of names.")
        found = {**trigger, **detail, **consumer}
        return cls(**{**found, "columns": None if columns is None else tuple(columns)})


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)
