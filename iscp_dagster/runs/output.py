"""What a run's steps print, for Dagster's UI."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from iscp_dagster.runs.home import InDagsterHome
from iscp_dagster.runs.internals import (
    IO_TYPE_EXTENSION,
    CapturedLogContext,
    ComputeIOType,
    LocalComputeLogManager,
    redirect_to_file,
)


class OutputInFiles(InDagsterHome, LocalComputeLogManager):
    """Keeps output in the same files as Dagster's default, and nowhere else.

    The default also copies it to the output of the run's process, for which each step starts four
    processes, two of them Pythons: a tenth of the time of a short run.
    """

    folder = "storage"

    @contextmanager
    def capture_logs(self, log_key: Sequence[str]) -> Generator[CapturedLogContext, None, None]:
        """Send what this process prints to the step's files, until the step ends."""
        out, err = (
            Path(self.get_captured_local_path(log_key, IO_TYPE_EXTENSION[stream]))
            for stream in (ComputeIOType.STDOUT, ComputeIOType.STDERR)
        )
        out.parent.mkdir(parents=True, exist_ok=True)
        with redirect_to_file(sys.stdout, str(out)), redirect_to_file(sys.stderr, str(err)):
            yield CapturedLogContext(log_key)
        # Tells readers that no more comes.
        path_of: Callable[[Sequence[str]], str] = self.complete_artifact_path
        Path(path_of(log_key)).touch()
