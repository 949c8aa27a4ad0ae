"""How each of many tenants is read, planned for as many at a time as possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from iscp_dagster.delta.feed import ReadKind, ReadPlan


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
    # A reason that concerns some tenants must not make the others snapshots.
    found: dict[ReadPlan, frozenset[str]] = {}
    waiting = _halves(tenants)
    while waiting:
        some = waiting.pop()
        each = plan(some)
        if each.kind is ReadKind.TAIL or len(some) == 1:
            found[each] = found.get(each, frozenset()) | some
        else:
            waiting += _halves(some)
    return found


def read_as(kind: ReadKind, plans: Mapping[ReadPlan, frozenset[str]]) -> frozenset[str]:
    """The tenants that are read in this way."""
    return frozenset().union(*(tenants for plan, tenants in plans.items() if plan.kind is kind))


def _halves(tenants: frozenset[str]) -> list[frozenset[str]]:
    ordered = sorted(tenants)
    middle = len(ordered) // 2
    return [frozenset(ordered[:middle]), frozenset(ordered[middle:])]
