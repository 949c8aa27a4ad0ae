"""Dagster's home, for the storages that `dagster.yaml` names."""

from __future__ import annotations

import os
from pathlib import Path

from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.variables import DAGSTER_HOME


def in_dagster_home(folder: str, *, of: type) -> str:
    """The folder's path. Raises ConfigError, naming the storage, if no home is set."""
    home = os.environ.get(DAGSTER_HOME)
    if not home:
        raise ConfigError(
            f"dagster.yaml: {of.__name__} has no folder, and {DAGSTER_HOME} is not set. "
            "Set base_dir in its config, or set the variable."
        )
    return str(Path(home) / folder)
