"""How a range is read, and for which of many tenants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from iscp_dagster.model.portions import halves, in_halves


class ReadKind(str, Enum):
    """SNAPSHOT: all rows at the end of the range; TAIL: the changes of the range."""

    SNAPSHOT = "snapshot"
    TAIL = "tail"


@dataclass(frozen=True, kw_only=True)
class ReadPlan:
    """How to read a range. A SNAPSHOT does not show deleted rows: rebuild the tenant."""

    kind: ReadKind
    reason: str


def by_plan(
    tenants: frozenset[str], plan: Callable[[frozenset[str]], ReadPlan]
) -> Mapping[ReadPlan, frozenset[str]]:
    """Every answer of `plan`, with the tenants that it is for.

    `plan` answers for a set of tenants, perhaps an empty one: a tail only if all can have one.
    """
    whole = plan(tenants)
    if whole.kind is ReadKind.TAIL or len(tenants) == 1:
        return {whole: tenants}
    anyone = plan(frozenset())
    if anyone.kind is ReadKind.SNAPSHOT:
        return {anyone: tenants}

    def planned(some: Sequence[str]) -> ReadPlan | None:
        # A reason that concerns some tenants must not make the others snapshots.
        each = plan(frozenset(some))
        return each if each.kind is ReadKind.TAIL or len(some) == 1 else None

    found: dict[ReadPlan, frozenset[str]] = {}
    for half in halves(sorted(tenants)):
        for some, each in in_halves(half, planned):
            found[each] = found.get(each, frozenset()) | frozenset(some)
    return found


def read_as(kind: ReadKind, plans: Mapping[ReadPlan, frozenset[str]]) -> frozenset[str]:
    """The tenants that are read in this way."""
    return frozenset().union(*(tenants for plan, tenants in plans.items() if plan.kind is kind))
