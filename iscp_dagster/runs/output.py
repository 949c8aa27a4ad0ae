"""What a run's steps print, for Dagster's UI."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dagster import Field, StringSource
from dagster._core.execution.compute_logs import redirect_to_file
from dagster._core.storage.compute_log_manager import CapturedLogContext, ComputeIOType
from dagster._core.storage.local_compute_log_manager import (
    IO_TYPE_EXTENSION,
    LocalComputeLogManager,
)
from dagster._serdes import ConfigurableClassData

from iscp_dagster.runs.home import in_dagster_home


class OutputInFiles(LocalComputeLogManager):
    """Keeps output in the same files as Dagster's default, and nowhere else.

    The default also copies it to the output of the run's process, for which each step starts four
    processes, two of them Pythons: a tenth of the time of a short run.
    """

    @classmethod
    def config_type(cls) -> Any:
        """The folder; default: `storage` in Dagster's home."""
        return {"base_dir": Field(StringSource, is_required=False)}

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> OutputInFiles:
        """Raises ConfigError if neither a folder nor Dagster's home is given."""
        folder = config_value.get("base_dir") or in_dagster_home("storage", of=cls)
        return cls(base_dir=folder, inst_data=inst_data)

    @contextmanager
    def capture_logs(self, log_key: Sequence[str]) -> Generator[CapturedLogContext, None, None]:
        """Send what this process prints to the step's files, until the step ends."""
        out, err = (
            Path(self.get_captured_local_path(log_key, IO_TYPE_EXTENSION[each]))
            for each in (ComputeIOType.STDOUT, ComputeIOType.STDERR)
        )
        out.parent.mkdir(parents=True, exist_ok=True)
        with redirect_to_file(sys.stdout, str(out)), redirect_to_file(sys.stderr, str(err)):
            yield CapturedLogContext(log_key)
        # Tells readers that no more comes.
        path_of: Callable[[Sequence[str]], str] = self.complete_artifact_path
        Path(path_of(log_key)).touch()
