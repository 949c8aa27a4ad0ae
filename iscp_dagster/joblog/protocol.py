"""What the ISCP log answers of jobs that a change interrupted, or that something happened to."""

from __future__ import annotations

from dataclasses import dataclass

from iscp_dagster.joblog.history import Bookmark
from iscp_dagster.model.jobs import JobKey


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """The iterations that a change of spec canceled."""

    keys: tuple[JobKey, ...] = ()
    runs: frozenset[str] = frozenset()
    changed: bool = False
    """Whether any spec or state changed."""


@dataclass(frozen=True, kw_only=True)
class Touched:
    """The (table id, tenant) of jobs that something happened to, and where to continue."""

    upto: Bookmark
    tenants: frozenset[tuple[str, str]] = frozenset()
    whole: bool = False
    """Whether none is missing: the log still has its history from the bookmark on."""
