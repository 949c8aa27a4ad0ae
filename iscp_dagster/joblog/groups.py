"""Transitions of many jobs at once: jobs whose rows are alike change alike.

A transition is computed for the first job of a group (`joblog.lifecycle`), and its result holds for
all members, but for what is a member's own: tenant, registration, fence and counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple, TypeVar

from iscp_dagster.joblog import lifecycle
from iscp_dagster.joblog.iterations import (
    NO_EARLIER_BATCHES,
    Claim,
    EarlierBatches,
    FailedStep,
    Iteration,
    WrittenStep,
)
from iscp_dagster.model.batch import SAME_LAYOUT, Layout
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.jobs import Job, JobKey
from iscp_dagster.model.moment import Moment

Step = TypeVar("Step", WrittenStep, FailedStep)
Counts = Mapping[str, int]


class Member(NamedTuple):
    """What is a job's own in a group."""

    key: JobKey
    registration: int
    seq: int
    counts: Counts
    """Of its status."""


@dataclass(frozen=True, kw_only=True)
class JobGroup:
    """Jobs that differ only in their `Member` values, and in when they were created and changed.

    Groups made without statuses have the first job's; their transitions keep or replace it.
    """

    first: Job
    members: Sequence[Member]

    def get_job(self, member: Member) -> Job:
        """The member's job."""
        return replace(
            self.first,
            key=member.key,
            registration=member.registration,
            seq=member.seq,
            status=replace(self.first.status, counts=member.counts),
        )

    def split_by(self, get_part: Callable[[Member], Hashable]) -> Iterator[JobGroup]:
        """The parts of the group whose members have the same value."""
        parts: dict[Hashable, list[Member]] = {}
        for member in self.members:
            parts.setdefault(get_part(member), []).append(member)
        for members in parts.values():
            yield self if len(parts) == 1 else self._select_members(members)

    def _select_members(self, members: Sequence[Member]) -> JobGroup:
        return JobGroup(first=self.get_job(members[0]), members=members)


@dataclass(frozen=True, kw_only=True)
class GroupChange:
    """A group's transition: the first job's row `after` it, and the members' new counts."""

    group: JobGroup
    after: Job
    counts: Mapping[JobKey, Counts] | None = None
    """None: a changed status has the counts of `after`."""

    def get_counts(self, member: Member) -> Counts:
        """The member's counts after the transition, if its status changed."""
        return self.after.status.counts if self.counts is None else self.counts[member.key]

    def get_seq(self, member: Member) -> int:
        """The member's fence after the transition."""
        return member.seq + self.after.seq - self.group.first.seq


def make_single_group(job: Job) -> JobGroup:
    """The group of one job."""
    member = Member(job.key, job.registration, job.seq, job.status.counts)
    return JobGroup(first=job, members=[member])


def make_queued_iterations(groups: Iterable[JobGroup]) -> tuple[Iteration, ...]:
    """The iterations that pending jobs wait for, ordered by start version."""
    by_range: dict[tuple[int, Moment, str], list[JobGroup]] = {}
    for group in groups:
        first = group.first
        if first.queued_to is not None:
            range_ = first.watermark.version, first.queued_to, first.key.table_id
            by_range.setdefault(range_, []).append(group)
    return tuple(_make_iteration(by_range[range_], to=range_[1]) for range_ in sorted(by_range))


def _make_iteration(groups: Sequence[JobGroup], to: Moment) -> Iteration:
    """The iteration of these groups' jobs, as `Iteration.from_jobs` makes it."""
    keys = sorted(member.key for group in groups for member in group.members)
    iteration = Iteration.from_jobs([group.first for group in groups], to)
    return iteration.select_jobs(keys)


def enqueue_groups(
    groups: Iterable[JobGroup], iteration: Iteration, run_id: str, now: datetime
) -> tuple[list[GroupChange], dict[JobKey, FenceError]]:
    """Enqueue the jobs whose rows still fit the iteration; errors for the others."""
    changes: list[GroupChange] = []
    missing = dict.fromkeys(iteration.jobs)
    errors: dict[JobKey, FenceError] = {}

    def enqueue_job(job: Job | None, key: JobKey) -> Job:
        return lifecycle.enqueue_job(job, key, iteration, run_id, now)

    for group in groups:
        for member in group.members:
            del missing[member.key]
        try:
            after = enqueue_job(group.first, group.first.key)
        except FenceError:
            errors |= {
                member.key: _catch(enqueue_job, group.get_job(member), member.key)
                for member in group.members
            }
        else:
            changes.append(GroupChange(group=group, after=after))
    return changes, errors | {key: _catch(enqueue_job, None, key) for key in missing}


def claim_groups(
    groups: Iterable[JobGroup],
    iteration: Iteration,
    *,
    run_id: str,
    queued_as: str | None,
    layout: Layout,
    layouts: Mapping[str, Layout] = SAME_LAYOUT,
    now: datetime,
    earlier: EarlierBatches = NO_EARLIER_BATCHES,
) -> tuple[list[GroupChange], tuple[Claim, ...]]:
    """Claim all of the iteration's jobs; the claims are in its order. Raises FenceError."""
    changes: list[GroupChange] = []
    claims: dict[JobKey, Claim] = {}

    def claim_job(job: Job | None, key: JobKey) -> tuple[Job, Claim]:
        return lifecycle.claim_job(
            job,
            key,
            iteration,
            run_id=run_id,
            queued_as=queued_as,
            layout=layouts.get(key.tenant, layout),
            now=now,
            earlier=earlier,
        )

    def get_part(member: Member) -> Hashable:
        own_layout = id(layouts.get(member.key.tenant))
        stored = id(earlier.previous.get(member.key))
        return own_layout, stored, member.key in earlier.unrepeatable

    for group in groups:
        for part in group.split_by(get_part):
            after, claim = claim_job(part.first, part.first.key)
            change = GroupChange(group=part, after=after)
            changes.append(change)
            for member in part.members:
                claims[member.key] = _copy_claim(claim, change, member)
    for key in iteration.jobs:
        if key not in claims:
            claim_job(None, key)
    return changes, tuple(claims[key] for key in iteration.jobs)


def advance_groups(
    groups: Iterable[JobGroup], steps: Collection[WrittenStep]
) -> tuple[list[GroupChange], dict[JobKey, Claim | FenceError]]:
    """Advance the rows that the claims still hold; each claim's successor, or its error."""
    changes: list[GroupChange] = []
    claims: dict[JobKey, Claim | FenceError] = {}
    by_key = _map_steps(steps)
    held, errors = _split_by_step(groups, by_key)
    for part in held:
        step = by_key[part.first.key]
        after, claim = lifecycle.advance_job(part.first, step.claim, step.counts)
        change = GroupChange(group=part, after=after, counts=_sum_counts(part, by_key))
        changes.append(change)
        for member in part.members:
            claims[member.key] = _copy_claim(claim, change, member)
    return changes, claims | errors


def complete_groups(
    groups: Iterable[JobGroup], steps: Collection[WrittenStep], now: datetime
) -> tuple[list[GroupChange], dict[JobKey, FenceError]]:
    """Complete the rows that the claims still hold; errors for the others."""
    by_key = _map_steps(steps)
    held, errors = _split_by_step(groups, by_key)
    return [
        GroupChange(
            group=part,
            after=lifecycle.complete_job(part.first, by_key[part.first.key], now),
            counts=_sum_counts(part, by_key),
        )
        for part in held
    ], errors


def fail_groups(
    groups: Iterable[JobGroup], steps: Collection[FailedStep], now: datetime
) -> tuple[list[GroupChange], dict[JobKey, FenceError]]:
    """Fail the rows that the claims still hold; errors for the others."""
    by_key = _map_steps(steps)
    held, errors = _split_by_step(groups, by_key)
    return [
        GroupChange(
            group=part,
            after=lifecycle.fail_job(part.first, by_key[part.first.key], now),
            counts={member.key: member.counts for member in part.members},
        )
        for part in held
    ], errors


def _map_steps(steps: Collection[Step]) -> dict[JobKey, Step]:
    return {step.claim.key: step for step in steps}


def _split_by_step(
    groups: Iterable[JobGroup], by_key: Mapping[JobKey, WrittenStep] | Mapping[JobKey, FailedStep]
) -> tuple[list[JobGroup], dict[JobKey, FenceError]]:
    """The jobs that the claims still hold, grouped by alike steps; errors for the others."""
    errors: dict[JobKey, FenceError] = {}
    held: list[JobGroup] = []

    def get_part(member: Member) -> Hashable:
        step = by_key[member.key]
        claim = step.claim
        if (claim.registration, claim.fence) != (member.registration, member.seq):
            return None
        # Jobs claimed together share these objects, which `by_key` keeps; others form more groups.
        result = str(step.to) if isinstance(step, WrittenStep) else (step.code, step.message)
        return id(claim.steps), id(claim.range), id(claim.previous), result

    for group in groups:
        for part in group.split_by(get_part):
            if get_part(part.members[0]) is not None:
                held.append(part)
                continue
            for member in part.members:
                claim = by_key[member.key].claim
                errors[member.key] = _catch(lifecycle.check_fence, part.get_job(member), claim)
    existing_keys = {member.key for part in held for member in part.members} | errors.keys()
    for key in by_key.keys() - existing_keys:
        errors[key] = _catch(lifecycle.check_fence, None, by_key[key].claim)
    return held, errors


def _sum_counts(part: JobGroup, steps: Mapping[JobKey, WrittenStep]) -> dict[JobKey, Counts]:
    """The members' counts, with those of their steps."""
    return {
        member.key: lifecycle.sum_counts(member.counts, steps[member.key].counts)
        for member in part.members
    }


def _copy_claim(claim: Claim, change: GroupChange, member: Member) -> Claim:
    """The member's claim, which is like the first job's."""
    return replace(
        claim, key=member.key, registration=member.registration, fence=change.get_seq(member)
    )


def _catch(transition: Callable[..., object], *arguments: object) -> FenceError:
    """The error that the transition raises."""
    try:
        transition(*arguments)
    except FenceError as error:
        return error
    raise AssertionError
