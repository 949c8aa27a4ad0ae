"""Finds out which of many tenants cause a failure, by trying them again in smaller sets.

Until a scan succeeds, tenants are tried alone, since that soon shows whether all fail. Then the
others are tried in halves. When too many in a row fail alone, the rest of a failed set is given up.
Each run tries the tenants in an order of its own, so that none is always given up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

from iscp_dagster.delta.plans import ReadKind
from iscp_dagster.joblog.iterations import Claim
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.portions import halves
from iscp_dagster.sync.iteration.outcomes import Error
from iscp_dagster.sync.reading.readings import Reading

TENANTS_TRIED = 8
"""How many tenants in a row must each fail alone before the failure is taken to concern all."""


class UntriedError(IscpError):
    """A tenant failed together with others and was not tried alone."""

    code = 1_520


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Claims to scan together."""

    reading: Reading
    claims: tuple[Claim, ...]
    failed: Mapping[str, Error] = field(default_factory=dict)
    """By job name, how they failed together: scan smaller sets instead."""


Known = Mapping[tuple[str, ReadKind], tuple[bool, ...]]
"""By job name and kind of reading, whether each scan succeeded, in order; scans in which several
tenants failed together tell nothing."""


def learned(known: Known, trial: Trial, job: str, *, served: bool) -> Known:
    """What is known once a scan ended: for all its tenants if `served`, else for its only one."""
    about = _about(trial, job)
    return {**known, about: (*known.get(about, ()), served)}


def narrowed(known: Known, trial: Trial) -> tuple[list[Trial], list[Claim]]:
    """The smaller trials to make of a failed one, and the claims that are given up."""
    left = [each for each in trial.claims if not _hopeless(known, trial, each)]
    given_up = [each for each in trial.claims if _hopeless(known, trial, each)]
    served = all(any(_of(known, trial, each)) for each in left)
    ordered = sorted(tenants_of(left), key=lambda tenant: _place(left[0], tenant))
    first = set(halves(ordered)[0] if served and ordered else ordered[:1])
    begun = replace(trial, claims=_among(left, first), failed={})
    rest = replace(trial, claims=_among(left, set(ordered) - first))
    if served or len(ordered) - len(first) == 1:
        rest = replace(rest, failed={})
    return [each for each in (begun, rest) if each.claims], given_up


def untried(claim: Claim, error: Error) -> UntriedError:
    """Why the claim fails for now: `error` is that of a set of tenants.

    It has only the error's code, since the text may name a key of another tenant.
    """
    return UntriedError(
        f"Job {claim.key} failed together with other tenants (code {error.code}), and was not "
        f"tried alone, because {TENANTS_TRIED} tenants in a row failed alone. It is retried "
        "automatically; correct what the errors of the table's other jobs name."
    )


def tenants_of(claims: Collection[Claim]) -> frozenset[str]:
    """The tenants of the claims."""
    return frozenset(claim.key.tenant for claim in claims)


def _hopeless(known: Known, trial: Trial, claim: Claim) -> bool:
    told = _of(known, trial, claim)[-TENANTS_TRIED:]
    return len(told) == TENANTS_TRIED and not any(told)


def _of(known: Known, trial: Trial, claim: Claim) -> Sequence[bool]:
    return known.get(_about(trial, claim.key.job_name), ())


def _about(trial: Trial, job: str) -> tuple[str, ReadKind]:
    return job, trial.reading.plan.kind


def _among(claims: Sequence[Claim], tenants: Collection[str]) -> tuple[Claim, ...]:
    return tuple(claim for claim in claims if claim.key.tenant in tenants)


def _place(claim: Claim, tenant: str) -> int:
    """The tenant's place in the run's order, which is as good as random."""
    return crc32(f"{claim.run_id} {tenant}".encode())
