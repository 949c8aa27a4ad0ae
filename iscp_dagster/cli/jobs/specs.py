"""Job specs from command-line options, or from a file."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iscp_dagster.api.names import parse_job_id, prefix_errors
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.clock import DURATION, parse_duration
from iscp_dagster.model.declared.kinds import list_kind_names
from iscp_dagster.model.declared.tables import DEFAULT_TENANT
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.specs import (
    JobSpec,
    TriggerSpec,
    parse_json_object,
)
from iscp_dagster.planning.triggers.loading import BUILT_IN, list_schedule_settings
from iscp_dagster.planning.triggers.periodic import INTERVAL, SHARE

if TYPE_CHECKING:
    from iscp_dagster.api.jobs import Jobs


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """One job that a person wants registered."""

    tenant: str
    job: JobID
    spec: JobSpec
    change: SpecUpdate
    """The requested fields; the rest of `spec` is as declared, or a default."""


def build_spec_update(
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
    """The change that the command line's options request. Raises ConfigError.

    Naming a built-in trigger that takes no schedule removes the current one.
    """
    schedule_options = {INTERVAL: interval, SHARE: share}
    schedule = {name: value for name, value in schedule_options.items() if value is not None}
    needless = trigger is not None and trigger in BUILT_IN and not list_schedule_settings(trigger)
    return SpecUpdate(
        job_type=trigger,
        schedule=schedule if schedule or needless else None,
        independent=independent,
        priority=priority,
        max_versions=max_versions,
        max_bytes=max_bytes,
        type=type,
        columns=None if columns is None else tuple(_split_columns(columns)),
        options=_parse_options(option) if option else None,
    )


def complete_schedule(change: SpecUpdate, triggers: Collection[TriggerSpec]) -> SpecUpdate:
    """Fill in what `change` leaves out of a schedule from the triggers that the jobs have.

    Raises ConfigError if the jobs would end up with different triggers.
    """
    if not change.schedule:
        return change
    updates = [_merge_schedule(change, trigger) for trigger in triggers]
    if any(update != updates[0] for update in updates):
        raise ConfigError(
            "The jobs have different triggers, and --interval and --share alone do not say which "
            "to keep. Name --trigger, --interval and --share (or --no-share), or one --tenant at "
            "a time."
        )
    return updates[0] if updates else change


def _merge_schedule(change: SpecUpdate, trigger: TriggerSpec) -> SpecUpdate:
    base = trigger.schedule if change.job_type in {None, trigger.job_type} else {}
    schedule = {**base, **(change.schedule or {})}
    return replace(change, job_type=change.job_type or trigger.job_type, schedule=schedule)


def build_job_request(
    jobs: Jobs, tenant: str, job: JobID, change: SpecUpdate, *, options: bool = False
) -> JobRequest:
    """A new job: its declaration, if there is one, with `change` applied.

    `options`: the change comes from the command line (`build_spec_update`). Raises ConfigError.
    """
    with prefix_errors(job):
        default = jobs.get_default_spec(job, change.type)
        if options:
            change = complete_schedule(change, [default.trigger])
        spec = change.apply_to(default)
    # It has built nothing yet.
    consumer = replace(spec.detail.consumer, generation=0)
    spec = replace(spec, detail=replace(spec.detail, consumer=consumer))
    return JobRequest(tenant=tenant, job=job, spec=spec, change=change)


def read_file(jobs: Jobs, path: Path) -> list[JobRequest]:
    """The jobs that a YAML file lists, validated. Raises ConfigError."""
    entries = _read_yaml(path)
    if not isinstance(entries, list):
        raise ConfigError(f"{path} is not a list; write `- tenant: …`, `  job: …`, `  spec: …`.")
    requests = {
        f"{path}, entry {number}": _parse_entry(jobs, f"{path}, entry {number}", entry)
        for number, entry in enumerate(entries, 1)
    }
    first_places: dict[JobID, str] = {}
    for where, request in requests.items():
        _check_same_consumer(where, request, requests[first_places.setdefault(request.job, where)])
    for job, where in first_places.items():
        tenants = {wish.tenant for wish in requests.values() if wish.job == job}
        try:
            jobs.check_siblings(job, requests[where].spec, tenants)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
    return list(requests.values())


def parse_time(text: str, now: datetime) -> datetime:
    """`text` as an aware time: a length of time before `now`, or an ISO time, UTC if it is naive.

    Raises ConfigError.
    """
    try:
        if (length := parse_duration(text)) is not None:
            return now - length
        parsed = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except (ValueError, OverflowError):
        raise ConfigError(
            f"The time {text!r} is neither a length of time ({DURATION}) nor an ISO time such as "
            "2026-01-31T12:00."
        ) from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)


def _parse_entry(jobs: Jobs, where: str, value: Any) -> JobRequest:
    try:
        fields = parse_json_object("entry", value, ("tenant", "job", "spec"), ("job",))
        job = parse_job_id(str(fields["job"]))
        change = SpecUpdate.from_json(fields.get("spec") or {})
        tenant = str(fields.get("tenant", DEFAULT_TENANT))
        wish = build_job_request(jobs, tenant, job, change)
        jobs.prepare_registration(tenant, job, wish.spec)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return wish


def _check_same_consumer(where: str, request: JobRequest, first: JobRequest) -> None:
    consumers = [entry.spec.detail.consumer for entry in (first, request)]
    types = {consumer.type for consumer in consumers}
    if consumers[0] != consumers[1] and types & set(list_kind_names()):
        raise ConfigError(
            f"{where}: index {request.job} differs from an earlier entry; it has one table for "
            "all its tenants, so give it the same type, columns and options in every entry."
        )


def _read_yaml(path: Path) -> Any:
    import yaml  # type: ignore[import-untyped]

    try:
        return yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"The file {path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"The file {path} is not YAML: {error}") from error


def _split_columns(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse_options(texts: Sequence[str]) -> Mapping[str, Any]:
    return dict(map(_parse_option, texts))


def _parse_option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ConfigError(f"The option {text!r} is not written name=value.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
