"""Jobs and history entries as rows of the log's tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, Generic, TypeVar

import sqlalchemy as sa

from iscp_dagster.joblog.groups import GroupChange, JobGroup, Member
from iscp_dagster.joblog.history import COUNTED, HistoryEntry, ends_iteration
from iscp_dagster.joblog.sql.tables import ISCP_LOG
from iscp_dagster.model.batch import BatchRecord, Phase, Range
from iscp_dagster.model.jobs import Job, JobID, JobKey, JobStatus
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.model.states import Event, JobState

Value = TypeVar("Value")

_COLUMNS: Mapping[str, Mapping[str, Callable[[Job], Any]]] = {
    "key": {
        "tenant": lambda job: job.key.tenant,
        "table_id": lambda job: job.key.table_id,
        "job_name": lambda job: job.key.job_name,
    },
    "registration": {"job_id": lambda job: job.registration},
    "name": {
        "db_name": lambda job: job.name.db,
        "table_name": lambda job: job.name.table,
    },
    "spec": {"job_spec": lambda job: job.spec.to_json()},
    "state": {"job_state": lambda job: int(job.state)},
    "watermark": {
        "watermark": lambda job: str(job.watermark),
        "watermark_version": lambda job: job.watermark.version,
    },
    "status": {"job_status": lambda job: job.status.to_json()},
    "create_at": {"create_at": lambda job: job.create_at},
    "drop_at": {"drop_at": lambda job: job.drop_at},
    "seq": {"seq": lambda job: job.seq},
    "run_id": {"run_id": lambda job: job.run_id},
    "batch": {
        "batch_from": lambda job: None if job.batch is None else str(job.batch.range.from_),
        "batch_to": lambda job: None if job.batch is None else str(job.batch.range.to),
        "batch_phase": lambda job: None if job.batch is None else job.batch.phase.value,
        "batch_layout": lambda job: None if job.batch is None else dict(job.batch.layout),
    },
    "queued_to": {"queued_to": lambda job: None if job.queued_to is None else str(job.queued_to)},
    "paused_at": {"paused_at": lambda job: job.paused_at},
    "rebuild": {"rebuild": lambda job: job.rebuild},
    "changed_at": {"changed_at": lambda job: job.changed_at},
    "collected_at": {"collected_at": lambda job: job.collected_at},
}
"""By a job's field, the columns that keep it."""


def to_row(job: Job, fields: Collection[str] = _COLUMNS.keys()) -> dict[str, Any]:
    """These fields of the job as column values."""
    return {
        column: get_value(job) for name in fields for column, get_value in _COLUMNS[name].items()
    }


def find_changed_fields(changes: Iterable[tuple[Job, Job]]) -> list[str]:
    """The fields that differ between a job's earlier and later row, in any of the pairs."""
    pairs = list(changes)
    return [
        name
        for name in _COLUMNS
        if any(getattr(before, name) is not getattr(after, name) for before, after in pairs)
    ]


def select_jobs() -> sa.Select[Any]:
    """Whole rows, for `read_jobs`.

    Their values are as the driver returns them: SQLAlchemy would convert those that rows have in
    common for each row anew.
    """
    columns: list[sa.ColumnElement[Any]] = [
        sa.type_coerce(column, sa.types.NULLTYPE).label(column.key) for column in ISCP_LOG.c
    ]
    return sa.select(*columns)


def read_jobs(rows: Iterable[sa.Row[Any]]) -> Iterator[Job]:
    """The jobs of selected rows, in order."""
    specs, statuses = _LastParsed(_parse_spec), _LastParsed(_parse_status)
    batches = _LastParsed(_parse_batch)
    for row in rows:
        batch = row.batch_phase, row.batch_from, row.batch_to, row.batch_layout
        yield Job(
            key=JobKey(tenant=row.tenant, table_id=row.table_id, job_name=row.job_name),
            registration=row.job_id,
            name=_make_job_id(row.db_name, row.table_name, row.job_name),
            spec=specs.parse(row.job_name, row.job_spec),
            state=JobState(row.job_state),
            watermark=Moment.parse(row.watermark),
            status=statuses.parse(row.job_name, row.job_status),
            create_at=_parse_time(row.create_at),
            drop_at=_parse_optional_time(row.drop_at),
            seq=row.seq,
            run_id=row.run_id,
            batch=batches.parse(row.job_name, batch),
            queued_to=None if row.queued_to is None else Moment.parse(row.queued_to),
            paused_at=_parse_optional_time(row.paused_at),
            rebuild=bool(row.rebuild),
            changed_at=_parse_optional_time(row.changed_at),
            collected_at=_parse_optional_time(row.collected_at),
        )


def group_jobs(rows: Iterable[sa.Row[Any]], *, by_status: bool) -> list[JobGroup]:
    """The jobs of selected rows, in groups; each group's first job is its first row's.

    Without `by_status`, only what the next iteration keeps of a status is common to a group.
    """
    specs, batches = _LastParsed(_parse_spec), _LastParsed(_parse_batch)
    first_jobs: dict[tuple[Any, ...], Job] = {}
    members: dict[tuple[Any, ...], list[Member]] = {}
    for row in rows:
        key = JobKey(tenant=row.tenant, table_id=row.table_id, job_name=row.job_name)
        status = _parse_json(row.job_status)
        counts = status["counts"]
        spec = specs.parse(row.job_name, row.job_spec)
        batch = row.batch_phase, row.batch_from, row.batch_to, row.batch_layout
        batch_record = batches.parse(row.job_name, batch)
        common = (
            *(row.table_id, row.job_name, row.db_name, row.table_name, id(spec), id(batch_record)),
            *(row.job_state, row.watermark, row.drop_at, row.run_id, row.queued_to),
            *(row.paused_at, row.rebuild, row.collected_at),
            *(
                (value for name, value in status.items() if name != "counts")
                if by_status
                else (status["attempts"], status.get("repairs", 0))
            ),
        )
        if common not in members:
            members[common] = []
            (first_jobs[common],) = read_jobs([row])
            # The ids above are those of objects that live on.
            first_jobs[common] = replace(first_jobs[common], spec=spec, batch=batch_record)
        members[common].append(Member(key, row.job_id, row.seq, counts))
    return [JobGroup(first=job, members=members[common]) for common, job in first_jobs.items()]


def make_group_rows(change: GroupChange, fields: Collection[str]) -> Iterator[dict[str, Any]]:
    """These fields of the members' rows after the change, with their keys."""
    common = to_row(change.after, fields)
    for member in change.group.members:
        row = {**common, "tenant": member.key.tenant}
        if "seq" in fields:
            row["seq"] = change.get_seq(member)
        if "status" in fields:
            row["job_status"] = {**common["job_status"], "counts": change.get_counts(member)}
        yield row


def make_group_entry_rows(change: GroupChange, entry: HistoryEntry) -> Iterator[dict[str, Any]]:
    """The members' rows in the history, where `entry` is the first job's."""
    common = to_entry_row(entry)
    has_own_counts = change.counts is not None and ends_iteration(entry.from_state, entry.event)
    for member in change.group.members:
        counts = change.get_counts(member)
        counted = {name: counts.get(name, 0) for name in COUNTED} if has_own_counts else {}
        own = {"tenant": member.key.tenant, "job_id": member.registration}
        yield {**common, **own, **counted}


class _LastParsed(Generic[Value]):
    """Parses values, but an index's value that equals its last one only once.

    The jobs of an index mostly have the same spec, batch and status.
    """

    def __init__(self, parse_new: Callable[[Any], Value]) -> None:
        self._parse_new = parse_new
        self._last: dict[str, tuple[Any, Value]] = {}

    def parse(self, index: str, value: Any) -> Value:
        last = self._last.get(index)
        if last is None or last[0] != value:
            last = self._last[index] = (value, self._parse_new(value))
        return last[1]


_make_job_id = lru_cache(lambda db, table, job: JobID(db=db, table=table, job=job))


@lru_cache
def _parse_time(value: str | datetime) -> datetime:
    """The time; SQLite keeps it as text without a time zone."""
    if isinstance(value, str):
        return datetime.fromisoformat(value).replace(tzinfo=timezone.utc)
    return value.astimezone(timezone.utc)


def _parse_optional_time(value: str | datetime | None) -> datetime | None:
    return None if value is None else _parse_time(value)


def _parse_json(value: Any) -> Any:
    """The JSON value; SQLite keeps it as text."""
    return json.loads(value) if isinstance(value, str) else value


def _parse_spec(value: Any) -> JobSpec:
    return JobSpec.from_json(_parse_json(value))


def _parse_status(value: Any) -> JobStatus:
    return JobStatus.from_json(_parse_json(value))


def _parse_batch(columns: tuple[str | None, str, str, Any]) -> BatchRecord | None:
    phase, from_, to, layout = columns
    if phase is None:
        return None
    range_ = Range(from_=Moment.parse(from_), to=Moment.parse(to))
    return BatchRecord(range=range_, phase=Phase(phase), layout=_parse_json(layout))


def to_entry_row(entry: HistoryEntry) -> dict[str, Any]:
    """The entry as column values, without its number, which the database assigns."""
    return {
        "at": entry.at,
        "tenant": entry.key.tenant,
        "table_id": entry.key.table_id,
        "job_name": entry.key.job_name,
        "job_id": entry.registration,
        "db_name": entry.name.db,
        "table_name": entry.name.table,
        "event": entry.event.value,
        "from_state": None if entry.from_state is None else int(entry.from_state),
        "to_state": int(entry.to_state),
        "who": entry.actor,
        "range_from": None if entry.from_ is None else str(entry.from_),
        "range_to": None if entry.to is None else str(entry.to),
        "error_code": entry.code,
        "error_msg": entry.message,
        "inserted": entry.inserted,
        "deleted": entry.deleted,
        "bytes": entry.bytes,
        "seconds": entry.seconds,
    }


def from_entry_row(row: sa.Row[Any]) -> HistoryEntry:
    """The entry from a row of the history."""
    return HistoryEntry(
        number=row.number,
        at=row.at,
        key=JobKey(tenant=row.tenant, table_id=row.table_id, job_name=row.job_name),
        name=JobID(db=row.db_name, table=row.table_name, job=row.job_name),
        registration=row.job_id,
        event=Event(row.event),
        from_state=None if row.from_state is None else JobState(row.from_state),
        to_state=JobState(row.to_state),
        actor=row.who,
        from_=None if row.range_from is None else Moment.parse(row.range_from),
        to=None if row.range_to is None else Moment.parse(row.range_to),
        code=row.error_code,
        message=row.error_msg,
        inserted=row.inserted,
        deleted=row.deleted,
        bytes=row.bytes,
        seconds=row.seconds,
    )
