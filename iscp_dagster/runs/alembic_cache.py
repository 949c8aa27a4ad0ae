"""The migrations of Dagster's storages in SQLite, read once for all runs.

To open such a storage, Alembic executes the files of all migrations, some ninety, to find the last
one. A run opens four storages: for runs, schedules, events, and its own events.
"""

from __future__ import annotations

from functools import cache

from iscp_dagster.runs.internals import (
    ScriptDirectory,
    get_alembic_config,
    sqlite_event_log,
    sqlite_run_storage,
    sqlite_schedule_storage,
)

_STORAGES = (sqlite_event_log, sqlite_run_storage, sqlite_schedule_storage)


def cache_migrations() -> None:
    """Read them, so that neither this process nor its forks read them again. Idempotent."""
    if not hasattr(ScriptDirectory.from_config, "cache_info"):
        # A storage's configuration is the same object as long as the process lives.
        ScriptDirectory.from_config = cache(ScriptDirectory.from_config)  # type: ignore[method-assign]
    for storage in _STORAGES:
        script = ScriptDirectory.from_config(get_alembic_config(storage.__file__))
        script.as_revision_number("head")
