"""Job specs from what a person types, or writes to a file."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iscp_dagster.api.names import about, parsed
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.clock import DURATION, duration
from iscp_dagster.model.declared.kinds import kind_names
from iscp_dagster.model.declared.tables import DEFAULT_TENANT
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.specs import (
    JobSpec,
    TriggerSpec,
    json_object,
)
from iscp_dagster.planning.triggers.loading import BUILT_IN, schedule_settings
from iscp_dagster.planning.triggers.periodic import INTERVAL, SHARE

if TYPE_CHECKING:
    from iscp_dagster.api.jobs import Jobs


@dataclass(frozen=True, kw_only=True)
class Wish:
    """One job that a person wants registered."""

    tenant: str
    job: JobID
    spec: JobSpec
    change: SpecUpdate
    """What was asked for; the rest of `spec` is as declared, or a default."""


def asked(
    *,
    type: str | None,  # noqa: A002  (the name of the field)
    columns: str | None,
    option: Sequence[str] | None,
    trigger: str | None,
    interval: str | None,
    share: bool | None,
    independent: bool | None,
    priority: int | None,
    max_versions: int | None,
    max_bytes: int | None,
) -> SpecUpdate:
    """The change that the command line's options ask for. Raises ConfigError.

    Naming a built-in trigger that takes no schedule removes the current one.
    """
    given = {INTERVAL: interval, SHARE: share}
    schedule = {name: value for name, value in given.items() if value is not None}
    needless = trigger is not None and trigger in BUILT_IN and not schedule_settings(trigger)
    return SpecUpdate(
        job_type=trigger,
        schedule=schedule if schedule or needless else None,
        independent=independent,
        priority=priority,
        max_versions=max_versions,
        max_bytes=max_bytes,
        type=type,
        columns=None if columns is None else tuple(_split(columns)),
        options=_options(option) if option else None,
    )


def scheduled(change: SpecUpdate, held: Collection[TriggerSpec]) -> SpecUpdate:
    """Fill in what `change` leaves out of a schedule from the triggers that the jobs have.

    Raises ConfigError if the jobs would end up with different triggers.
    """
    if not change.schedule:
        return change
    after = [_rescheduled(change, each) for each in held]
    if any(each != after[0] for each in after):
        raise ConfigError(
            "The jobs have different triggers, and --interval and --share alone do not say which "
            "to keep. Name --trigger, --interval and --share (or --no-share), or one --tenant at "
            "a time."
        )
    return after[0] if after else change


def _rescheduled(change: SpecUpdate, held: TriggerSpec) -> SpecUpdate:
    kept = held.schedule if change.job_type in {None, held.job_type} else {}
    schedule = {**kept, **(change.schedule or {})}
    return replace(change, job_type=change.job_type or held.job_type, schedule=schedule)


def wished(
    jobs: Jobs, tenant: str, job: JobID, change: SpecUpdate, *, options: bool = False
) -> Wish:
    """A new job: its declaration, if there is one, with `change` applied.

    `options`: the change comes from the command line (`asked`). Raises ConfigError.
    """
    with about(job):
        plain = jobs.plain_spec(job, change.type)
        if options:
            change = scheduled(change, [plain.trigger])
        spec = change.applied(plain)
    # It has built nothing yet.
    first = replace(spec.detail.consumer, generation=0)
    spec = replace(spec, detail=replace(spec.detail, consumer=first))
    return Wish(tenant=tenant, job=job, spec=spec, change=change)


def read_file(jobs: Jobs, path: Path) -> list[Wish]:
    """The jobs that a YAML file lists, all checked. Raises ConfigError."""
    entries = _yaml(path)
    if not isinstance(entries, list):
        raise ConfigError(f"{path} is not a list; write `- tenant: …`, `  job: …`, `  spec: …`.")
    wishes = {
        f"{path}, entry {at}": _entry(jobs, f"{path}, entry {at}", each)
        for at, each in enumerate(entries, 1)
    }
    first: dict[JobID, str] = {}
    for where, wish in wishes.items():
        _check_alike(where, wish, wishes[first.setdefault(wish.job, where)])
    for job, where in first.items():
        tenants = {wish.tenant for wish in wishes.values() if wish.job == job}
        try:
            jobs.check_siblings(job, wishes[where].spec, tenants)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
    return list(wishes.values())


def moment_of(text: str, now: datetime) -> datetime:
    """`text` as an aware time: a length of time before `now`, or an ISO time, UTC if it is naive.

    Raises ConfigError.
    """
    try:
        if (length := duration(text)) is not None:
            return now - length
        found = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except (ValueError, OverflowError):
        raise ConfigError(
            f"The time {text!r} is neither a length of time ({DURATION}) nor an ISO time such as "
            "2026-01-31T12:00."
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def _entry(jobs: Jobs, where: str, value: Any) -> Wish:
    try:
        fields = json_object("entry", value, ("tenant", "job", "spec"), ("job",))
        job = parsed(str(fields["job"]))
        change = SpecUpdate.from_json(fields.get("spec") or {})
        tenant = str(fields.get("tenant", DEFAULT_TENANT))
        wish = wished(jobs, tenant, job, change)
        jobs.registrable(tenant, job, wish.spec)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return wish


def _check_alike(where: str, wish: Wish, first: Wish) -> None:
    consumers = [each.spec.detail.consumer for each in (first, wish)]
    if consumers[0] != consumers[1] and {each.type for each in consumers} & set(kind_names()):
        raise ConfigError(
            f"{where}: index {wish.job} differs from an earlier entry; it has one table for "
            "all its tenants, so give it the same type, columns and options in every entry."
        )


def _yaml(path: Path) -> Any:
    import yaml  # type: ignore[import-untyped]

    try:
        return yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"The file {path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"The file {path} is not YAML: {error}") from error


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _options(given: Sequence[str]) -> Mapping[str, Any]:
    return dict(map(_option, given))


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ConfigError(f"The option {text!r} is not written name=value.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
