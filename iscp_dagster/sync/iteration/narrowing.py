"""Finds out which of many tenants cause a failure, by trying them again in smaller sets.

Until a scan succeeds, tenants are tried alone, since that soon shows whether all fail. Then the
others are tried in halves. When too many in a row fail alone, the rest of a failed set is given up.
Each run tries the tenants in an order of its own, so that none is always given up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.joblog.iterations import Claim
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.portions import split_into_halves
from iscp_dagster.sync.iteration.outcomes import ErrorDetail
from iscp_dagster.sync.reading.requests import ReadRequest

TENANTS_TRIED = 8
"""How many tenants in a row must each fail alone before the failure is taken to concern all."""


class UntriedError(IscpError):
    """A tenant failed together with others and was not tried alone."""

    code = 1_520


@dataclass(frozen=True, kw_only=True)
class ScanGroup:
    """Claims to scan together."""

    request: ReadRequest
    claims: tuple[Claim, ...]
    errors: Mapping[str, ErrorDetail] = field(default_factory=dict)
    """By job name, the error with which these claims failed together; if there is any, the group is
    split, not scanned."""


ScanHistory = Mapping[tuple[str, ReadKind], tuple[bool, ...]]
"""By job name and kind of reading, whether each scan succeeded, in order; without scans in which
several tenants failed together."""


def record_scan(
    history: ScanHistory, group: ScanGroup, job: str, *, succeeded: bool
) -> ScanHistory:
    """The history with a scan: of all its tenants if it `succeeded`, else of its only one."""
    key = _get_history_key(group, job)
    return {**history, key: (*history.get(key, ()), succeeded)}


def split_group(history: ScanHistory, group: ScanGroup) -> tuple[list[ScanGroup], list[Claim]]:
    """The smaller groups to make of a failed one, and the claims that are given up."""
    remaining = [claim for claim in group.claims if not _is_hopeless(history, group, claim)]
    given_up = [claim for claim in group.claims if _is_hopeless(history, group, claim)]
    served = all(any(_get_results(history, group, claim)) for claim in remaining)
    ordered = sorted(get_tenants(remaining), key=lambda tenant: _rank_tenant(remaining[0], tenant))
    first = set(split_into_halves(ordered)[0] if served and ordered else ordered[:1])
    first_group = replace(group, claims=_filter_claims(remaining, first), errors={})
    last_group = replace(group, claims=_filter_claims(remaining, set(ordered) - first))
    if served or len(ordered) - len(first) == 1:
        last_group = replace(last_group, errors={})
    return [smaller for smaller in (first_group, last_group) if smaller.claims], given_up


def make_untried_error(claim: Claim, error: ErrorDetail) -> UntriedError:
    """Why the claim fails for now: `error` belongs to a set of tenants.

    It has only the error's code, since the text may name a key of another tenant.
    """
    return UntriedError(
        f"Job {claim.key} failed together with other tenants (code {error.code}), and was not "
        f"tried alone, because {TENANTS_TRIED} tenants in a row failed alone. It is retried "
        "automatically; correct the causes that the table's other jobs report."
    )


def get_tenants(claims: Collection[Claim]) -> frozenset[str]:
    """The tenants of the claims."""
    return frozenset(claim.key.tenant for claim in claims)


def _is_hopeless(history: ScanHistory, group: ScanGroup, claim: Claim) -> bool:
    results = _get_results(history, group, claim)[-TENANTS_TRIED:]
    return len(results) == TENANTS_TRIED and not any(results)


def _get_results(history: ScanHistory, group: ScanGroup, claim: Claim) -> Sequence[bool]:
    return history.get(_get_history_key(group, claim.key.job_name), ())


def _get_history_key(group: ScanGroup, job: str) -> tuple[str, ReadKind]:
    return job, group.request.plan.kind


def _filter_claims(claims: Sequence[Claim], tenants: Collection[str]) -> tuple[Claim, ...]:
    return tuple(claim for claim in claims if claim.key.tenant in tenants)


def _rank_tenant(claim: Claim, tenant: str) -> int:
    """The tenant's place in the run's order, which is as good as random."""
    return crc32(f"{claim.run_id} {tenant}".encode())
