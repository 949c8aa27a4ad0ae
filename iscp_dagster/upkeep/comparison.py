"""The indexes of several tables against their sources: what differs, and what was not compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.planning.problems import Problem, problem_of
from iscp_dagster.sync.consumers import is_index
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.upkeep.position import positions
from iscp_dagster.upkeep.verify import Verdict, verify

Wanted = Sequence[tuple[SourceTable, list[str] | None]]
"""Tables, each with the names of some of its indexes, or None for all."""


@dataclass(kw_only=True)
class Comparison:
    """What was found."""

    verdicts: list[tuple[SourceTable, Verdict]] = field(default_factory=list)
    unbuilt: list[tuple[SourceTable, str, str]] = field(default_factory=list)
    """The indexes, and their tenants, that have nothing to compare yet."""
    problems: list[Problem] = field(default_factory=list)
    """Why other tables could not be compared."""

    @property
    def differs(self) -> bool:
        """Whether an index has other rows than its source."""
        return not all(verdict.agrees for _, verdict in self.verdicts)

    @property
    def empty(self) -> bool:
        """Whether no index was found that has, or is to have, rows to compare."""
        return not (self.verdicts or self.unbuilt)

    @property
    def whole(self) -> bool:
        """Whether there was something to compare, and all of it was."""
        return bool(self.verdicts) and not self.unbuilt and not self.problems


def compared(
    deployment: Deployment,
    wanted: Wanted,
    tenant: str | None = None,
    tell: Callable[[str], None] | None = None,
) -> Comparison:
    """Compare what is built, for one tenant or all. What a table raises stops it alone.

    `tell` is called with what is being compared now.
    """
    found, tenants = Comparison(), None if tenant is None else [tenant]
    for source, names in wanted:
        try:
            held = positions(deployment, source, tenants=tenants, indexes=names)
            verdicts = verify(deployment, source, tenants=tenants, indexes=names, tell=tell)
        except Exception as error:  # noqa: BLE001 - the others can still be compared
            found.problems.append(problem_of(source, error))
            continue
        found.verdicts += [(source, verdict) for verdict in verdicts]
        found.unbuilt += [
            (source, each.index, each.tenant)
            for each in held
            if is_index(each.consumer) and not each.built
        ]
    return found
