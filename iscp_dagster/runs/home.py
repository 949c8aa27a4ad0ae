"""Dagster's home, for the storages that `dagster.yaml` names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from dagster import Field, StringSource

from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.variables import DAGSTER_HOME


class InDagsterHome:
    """A storage configured with `base_dir`; left out, it is where Dagster's default is."""

    folder: ClassVar[str]
    """The default folder, below Dagster's home."""

    @classmethod
    def config_type(cls) -> Any:
        """The folder, which may be left out."""
        return {"base_dir": Field(StringSource, is_required=False)}

    @classmethod
    def from_config_value(cls, inst_data: Any, config_value: Mapping[str, Any]) -> Self:
        """Raises ConfigError if neither a folder nor Dagster's home is set."""
        create: Callable[..., Self] = cls
        return create(
            base_dir=config_value.get("base_dir") or cls._get_default_folder(), inst_data=inst_data
        )

    @classmethod
    def _get_default_folder(cls) -> str:
        home = os.environ.get(DAGSTER_HOME)
        if not home:
            raise ConfigError(
                f"dagster.yaml: {cls.__name__} has no folder, and {DAGSTER_HOME} is not set. "
                "Set base_dir in its config, or set the variable."
            )
        return str(Path(home) / cls.folder)
