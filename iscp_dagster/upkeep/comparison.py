"""Compares the indexes of several tables with their sources, and lists what was left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from iscp_dagster.model.consumers.kinds import is_index
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.jobs import Job, JobStatus
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.problems import Problem, problem_of
from iscp_dagster.planning.table_problems import earlier_ids
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.upkeep.position import positions
from iscp_dagster.upkeep.verify import Failure, Verdict, compare_indexes

Wanted = Sequence[tuple[SourceTable, list[str] | None]]
"""Tables, each with the names of some of its indexes, or None for all."""


@dataclass(frozen=True, kw_only=True)
class Unbuilt:
    """An index of a tenant that has nothing to compare, or has rows of an earlier table."""

    index: str
    tenant: str
    error: JobStatus | None = None
    """Why, if its job is in error; else it is not built yet."""


@dataclass(kw_only=True)
class Comparison:
    """The result of comparing several tables."""

    verdicts: list[tuple[SourceTable, Verdict]] = field(default_factory=list)
    unbuilt: list[tuple[SourceTable, Unbuilt]] = field(default_factory=list)
    failures: list[tuple[SourceTable, Failure]] = field(default_factory=list)
    """Why some indexes, or tenants of them, could not be compared."""
    problems: list[Problem] = field(default_factory=list)
    """Why other tables could not be compared."""

    @property
    def differs(self) -> bool:
        """Whether an index has other rows than its source."""
        return not all(verdict.agrees for _, verdict in self.verdicts)

    @property
    def empty(self) -> bool:
        """Whether there was no index at all, built or not."""
        return not (self.verdicts or self.unbuilt or self.failures)

    @property
    def whole(self) -> bool:
        """Whether there was something to compare, and nothing was left out."""
        return bool(self.verdicts) and not (self.unbuilt or self.failures or self.problems)


def compared(
    deployment: Deployment,
    wanted: Wanted,
    tenant: str | None = None,
    tell: Callable[[str], None] | None = None,
) -> Comparison:
    """Compare the built indexes, for one tenant or all. An error of one stops no other.

    `tell` is called with a line about each comparison as it begins.
    """
    found, tenants = Comparison(), None if tenant is None else [tenant]
    for source, names in wanted:
        try:
            held = positions(deployment, source, tenants=tenants, indexes=names)
            results = compare_indexes(deployment, source, tenants=tenants, indexes=names, tell=tell)
            stranded = _stranded(deployment, source, tenant, names)
        except Exception as error:  # noqa: BLE001 - the others can still be compared
            found.problems.append(problem_of(source, error))
            continue
        found.verdicts += [(source, each) for each in results if isinstance(each, Verdict)]
        found.failures += [(source, each) for each in results if isinstance(each, Failure)]
        found.unbuilt += [
            (source, _unbuilt(each.job))
            for each in held
            if is_index(each.consumer) and not each.built
        ]
        found.unbuilt += [(source, _unbuilt(job)) for job in stranded]
    return found


def _stranded(
    deployment: Deployment, source: SourceTable, tenant: str | None, names: list[str] | None
) -> list[Job]:
    """The jobs of those indexes whose rows are of an earlier table of that name."""
    earlier = earlier_ids(deployment, source, deployment.delta_log(source).table_id())
    return [
        job
        for table_id in sorted(earlier)
        for job in deployment.log.jobs(table_id=table_id, tenant=tenant)
        if (job.name.db, job.name.table) == (source.database, source.table)
        and is_index(job.spec.detail.consumer)
        and (names is None or job.name.job in names)
    ]


def _unbuilt(job: Job) -> Unbuilt:
    error = job.status if job.state is JobState.ERROR else None
    return Unbuilt(index=job.name.job, tenant=job.key.tenant, error=error)
