"""Opens a table with deltalake, even if its log has a wrong hint; explains why it cannot."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from iscp_dagster.delta.log.files import LOG_FOLDER, PATIENCE, open_log_files, to_local_path
from iscp_dagster.delta.log.storage_errors import summarize_error, translate_store_error
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
        return _open_delta_table(location, options, version)
    except (UnavailableError, SourceError):
        raise
    except Exception as error:
        if _SAYS_STALE_HINT in str(error):
            return _open_past_hint(location, options, version)
        raise _translate_error(location, version, error) from error


def _open_delta_table(location: str, options: Mapping[str, str], version: int | None) -> Any:
    from deltalake import DeltaTable

    storage = {**PATIENCE, **options}
    return DeltaTable(to_table_url(location), version=version, storage_options=storage)


def _open_past_hint(location: str, options: Mapping[str, str], version: int | None) -> Any:
    """The table, opened as Spark does: as if the log had no hint of its last checkpoint.

    deltalake ignores a hint that is later than the version which it opens, and reads on from there.
    """
    hint = _read_hint(location, options)
    try:
        table = _open_delta_table(location, options, None if hint is None else hint - 1)
        if version is None:
            table.update_incremental()
        else:
            table.load_as_version(version)
    except Exception as error:
        translated = translate_store_error(location, error)
        if isinstance(translated, UnavailableError):
            raise translated from error
        checkpoint = "a checkpoint" if hint is None else f"checkpoint {hint}"
        raise SourceError(
            f"No Delta table can be opened at {location}: its {HINT} names {checkpoint}, which is "
            f"missing ({summarize_error(error)}). Delete that file: readers then look for the "
            "checkpoints "
            "that exist."
        ) from error
    return table


def _read_hint(location: str, options: Mapping[str, str]) -> int | None:
    """The version of the checkpoint that the log's hint names; None where it cannot be read."""
    content = open_log_files(location, dict(options)).read(HINT)
    try:
        return int(json.loads(content or b"{}")["version"])
    except (ValueError, KeyError, TypeError):
        return None


def _translate_error(location: str, version: int | None, error: Exception) -> IscpError:
    translated = translate_store_error(location, error)
    if isinstance(translated, UnavailableError):
        return translated
    if _SAYS_MANAGED in str(error):
        return SourceError(
            f"{location} is a catalog-managed Delta table (feature catalogManaged): its catalog "
            "keeps its commits, so that nobody can follow them by the table's path. Have the "
            "catalog release it (ALTER TABLE ... DROP FEATURE catalogManaged), or declare a copy "
            "without that feature, made by CREATE TABLE ... AS SELECT and updated by MERGE INTO."
        )
    at_version = "" if version is None else f" at version {version}"
    return SourceError(
        f"No Delta table can be opened at {location}{at_version}: {summarize_error(error)}. "
        "Correct the path of the source table, or create and fill the table first."
    )


def to_table_url(location: str) -> str:
    """The URL for deltalake; for a local path a file URL, where `#` and `?` have no meaning.

    Raises SourceError for a path with a percent escape such as `%41`: deltalake decodes a local one
    twice; in another store's URL it decodes it, but Spark does not.
    """
    folder = to_local_path(location)
    if folder is None and ESCAPE.search(location):
        raise SourceError(
            f"The path {location} holds a percent escape, which deltalake decodes and Spark does "
            "not. Write the character itself, or move the table to a path without one."
        )
    if folder is None:
        return location
    if ESCAPE.search(folder):
        raise SourceError(
            f"The path {folder} holds a percent escape, which deltalake cannot open. "
            "Move the table to a path without one."
        )
    return Path(folder).as_uri()
