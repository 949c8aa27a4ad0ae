"""Compares the indexes of several tables with their sources, and lists what was left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from iscp_dagster.model.consumers.kinds import is_index
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.jobs import Job, JobStatus
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.problems import Problem, make_problem
from iscp_dagster.planning.table_problems import find_earlier_ids
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.upkeep.position import read_positions
from iscp_dagster.upkeep.verify_indexes import ComparisonFailure, IndexVerdict, compare_indexes

RequestedIndexes = Sequence[tuple[SourceTable, list[str] | None]]
"""Tables, each with the names of some of its indexes, or None for all."""


@dataclass(frozen=True, kw_only=True)
class UnbuiltIndex:
    """An index of a tenant that has nothing to compare, or has rows of an earlier table."""

    index: str
    tenant: str
    error: JobStatus | None = None
    """Why, if its job is in error; else it is not built yet."""


@dataclass(kw_only=True)
class ComparisonResult:
    """The result of comparing several tables."""

    verdicts: list[tuple[SourceTable, IndexVerdict]] = field(default_factory=list)
    unbuilt: list[tuple[SourceTable, UnbuiltIndex]] = field(default_factory=list)
    failures: list[tuple[SourceTable, ComparisonFailure]] = field(default_factory=list)
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
    def complete(self) -> bool:
        """Whether there was something to compare, and nothing was left out."""
        return bool(self.verdicts) and not (self.unbuilt or self.failures or self.problems)


def compare_tables(
    deployment: Deployment,
    requested: RequestedIndexes,
    tenant: str | None = None,
    report: Callable[[str], None] | None = None,
) -> ComparisonResult:
    """Compare the built indexes, for one tenant or all. An error in one does not stop the others.

    `report` is called with a line about each comparison as it begins.
    """
    comparison, tenants = ComparisonResult(), None if tenant is None else [tenant]
    for source, names in requested:
        try:
            positions = read_positions(deployment, source, tenants=tenants, job_names=names)
            results = compare_indexes(
                deployment, source, tenants=tenants, indexes=names, report=report
            )
            stranded = _find_stranded_jobs(deployment, source, tenant, names)
        except Exception as error:  # noqa: BLE001 - the others can still be compared
            comparison.problems.append(make_problem(source, error))
            continue
        comparison.verdicts += [
            (source, result) for result in results if isinstance(result, IndexVerdict)
        ]
        comparison.failures += [
            (source, result) for result in results if isinstance(result, ComparisonFailure)
        ]
        comparison.unbuilt += [
            (source, _make_unbuilt(position.job))
            for position in positions
            if is_index(position.consumer) and not position.built
        ]
        comparison.unbuilt += [(source, _make_unbuilt(job)) for job in stranded]
    return comparison


def _find_stranded_jobs(
    deployment: Deployment, source: SourceTable, tenant: str | None, names: list[str] | None
) -> list[Job]:
    """The jobs of these indexes whose rows come from an earlier table of the same name."""
    earlier = find_earlier_ids(deployment, source, deployment.make_delta_log(source).get_table_id())
    return [
        job
        for table_id in sorted(earlier)
        for job in deployment.log.list_jobs(table_id=table_id, tenant=tenant)
        if (job.name.db, job.name.table) == (source.database, source.table)
        and is_index(job.spec.detail.consumer)
        and (names is None or job.name.job in names)
    ]


def _make_unbuilt(job: Job) -> UnbuiltIndex:
    error = job.status if job.state is JobState.ERROR else None
    return UnbuiltIndex(index=job.name.job, tenant=job.key.tenant, error=error)
