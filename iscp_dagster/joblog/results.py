"""What the ISCP log returns about jobs that were interrupted, or that changed."""

from __future__ import annotations

from dataclasses import dataclass

from iscp_dagster.joblog.history import Bookmark
from iscp_dagster.model.jobs import JobKey


@dataclass(frozen=True, kw_only=True)
class SpecUpdateResult:
    """Whether a change of spec changed anything, and what it interrupted."""

    interrupted_jobs: tuple[JobKey, ...] = ()
    interrupted_runs: frozenset[str] = frozenset()
    changed: bool = False
    """Whether any spec or state changed."""


@dataclass(frozen=True, kw_only=True)
class ChangedTenants:
    """The (table id, tenant) of jobs with new history, and where to continue."""

    upto: Bookmark
    tenants: frozenset[tuple[str, str]] = frozenset()
    complete: bool = False
    """Whether none is missing: the log still has all history since the bookmark."""
