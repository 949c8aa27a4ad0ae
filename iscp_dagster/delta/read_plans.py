"""How a range is read, and for which of many tenants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from iscp_dagster.model.portions import bisect_on_failure, split_into_halves


class ReadKind(str, Enum):
    """SNAPSHOT: all rows at the end of the range; TAIL: the changes of the range."""

    SNAPSHOT = "snapshot"
    TAIL = "tail"


@dataclass(frozen=True, kw_only=True)
class ReadPlan:
    """How to read a range. A SNAPSHOT does not show deleted rows: rebuild the tenant."""

    kind: ReadKind
    reason: str


def group_by_plan(
    tenants: frozenset[str], plan: Callable[[frozenset[str]], ReadPlan]
) -> Mapping[ReadPlan, frozenset[str]]:
    """The plans, each with the tenants that it is for.

    `plan` takes a set of tenants, possibly empty, and gives a tail only if all can have one.
    """
    common_plan = plan(tenants)
    if common_plan.kind is ReadKind.TAIL or len(tenants) == 1:
        return {common_plan: tenants}
    base_plan = plan(frozenset())
    if base_plan.kind is ReadKind.SNAPSHOT:
        return {base_plan: tenants}

    def plan_group(group: Sequence[str]) -> ReadPlan | None:
        # A reason that concerns some tenants must not make the others snapshots.
        group_plan = plan(frozenset(group))
        return group_plan if group_plan.kind is ReadKind.TAIL or len(group) == 1 else None

    groups: dict[ReadPlan, frozenset[str]] = {}
    for half in split_into_halves(sorted(tenants)):
        for group, group_plan in bisect_on_failure(half, plan_group):
            groups[group_plan] = groups.get(group_plan, frozenset()) | frozenset(group)
    return groups


def select_tenants(kind: ReadKind, plans: Mapping[ReadPlan, frozenset[str]]) -> frozenset[str]:
    """The tenants that are read as `kind`."""
    return frozenset().union(*(tenants for plan, tenants in plans.items() if plan.kind is kind))
