"""Opens a table with deltalake, also where its log has a wrong hint; says what it cannot open."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from iscp_dagster.delta.log.files import LOG_FOLDER, PATIENCE, local_path, log_files
from iscp_dagster.delta.log.unreadable import reason, unreadable
from iscp_dagster.model.errors import IscpError, SourceError, UnavailableError

ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
HINT = f"{LOG_FOLDER}/_last_checkpoint"
_SAYS_STALE_HINT = "_last_checkpoint hint"
"""In deltalake's error for a hint that names a checkpoint which is not there."""
_SAYS_MANAGED = "catalog-managed"
"""In deltalake's error for a table whose commits a catalog keeps."""


def open_table(location: str, options: Mapping[str, str], version: int | None) -> Any:
    """The table as of `version` (None: the latest), opened by deltalake.

    Raises SourceError where it cannot be opened, UnavailableError where its store does not answer.
    """
    try:
        return _open(location, options, version)
    except (UnavailableError, SourceError):
        raise
    except Exception as error:
        if _SAYS_STALE_HINT in str(error):
            return _open_past_hint(location, options, version)
        raise _refused(location, version, error) from error


def _open(location: str, options: Mapping[str, str], version: int | None) -> Any:
    from deltalake import DeltaTable

    storage = {**PATIENCE, **options}
    return DeltaTable(table_url(location), version=version, storage_options=storage)


def _open_past_hint(location: str, options: Mapping[str, str], version: int | None) -> Any:
    """The table, opened as Spark does: as if the log had no hint of its last checkpoint.

    deltalake ignores a hint that is later than the version which it opens, and reads on from there.
    """
    hinted = _hinted(location, options)
    try:
        table = _open(location, options, None if hinted is None else hinted - 1)
        if version is None:
            table.update_incremental()
        else:
            table.load_as_version(version)
    except Exception as error:
        known = unreadable(location, error)
        if isinstance(known, UnavailableError):
            raise known from error
        named = "a checkpoint" if hinted is None else f"checkpoint {hinted}"
        raise SourceError(
            f"No Delta table can be opened at {location}: its {HINT} names {named}, which is not "
            f"there ({reason(error)}). Delete that file: readers then look for the checkpoints "
            "that there are."
        ) from error
    return table


def _hinted(location: str, options: Mapping[str, str]) -> int | None:
    """The version of the checkpoint that the log's hint names; None where it cannot be read."""
    content = log_files(location, dict(options)).read(HINT)
    try:
        return int(json.loads(content or b"{}")["version"])
    except (ValueError, KeyError, TypeError):
        return None


def _refused(location: str, version: int | None, error: Exception) -> IscpError:
    known = unreadable(location, error)
    if isinstance(known, UnavailableError):
        return known
    if _SAYS_MANAGED in str(error):
        return SourceError(
            f"{location} is a catalog-managed Delta table (feature catalogManaged): its catalog "
            "keeps its commits, so that nobody can follow them by the table's path. Have the "
            "catalog let go of it (ALTER TABLE ... DROP FEATURE catalogManaged), or declare a copy "
            "without that feature, made by CREATE TABLE ... AS SELECT and kept up by MERGE INTO."
        )
    wanted = "" if version is None else f" at version {version}"
    return SourceError(
        f"No Delta table can be opened at {location}{wanted}: {reason(error)}. "
        "Correct the path of the source table, or create and fill the table first."
    )


def table_url(location: str) -> str:
    """The URL for deltalake; for a local path a file URL, where `#` and `?` have no meaning.

    Raises SourceError for a path with `%41` or the like: in a local one deltalake decodes it twice,
    and in another store's URL, which it decodes, Spark does not.
    """
    folder = local_path(location)
    if folder is None and ESCAPE.search(location):
        raise SourceError(
            f"The path {location} holds a percent escape, which is a character for deltalake and "
            "three for Spark. Write the character itself, or move the table to a path without one."
        )
    if folder is None:
        return location
    if ESCAPE.search(folder):
        raise SourceError(
            f"The path {folder} holds a percent escape, which deltalake cannot open. "
            "Move the table to a path without one."
        )
    return Path(folder).as_uri()
