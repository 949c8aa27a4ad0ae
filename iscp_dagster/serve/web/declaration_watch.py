"""Ends the server when the declarations change, so that its supervisor restarts it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from iscp_dagster.api.discovery import DEFAULT_PACKAGE
from iscp_dagster.model.imports import ASSETS

if TYPE_CHECKING:
    import uvicorn

POLL_SECONDS = 1.0
"""Between two looks at the files."""
_LOGGER = logging.getLogger(__name__)
_LOAD = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[1])
from iscp_dagster.api.discovery import load_endpoints, load_tables
from iscp_dagster.model.errors import IscpError
try:
    load_tables(os.environ), load_endpoints(os.environ)
except IscpError as error:
    sys.exit(str(error))
"""

FileMarks = Mapping[str, tuple[int, int]]


def read_marks(environ: Mapping[str, str]) -> FileMarks:
    """Time and size of each file of the package that declares the location's tables.

    Empty if there is no such package.
    """
    try:
        spec = find_spec(environ.get(ASSETS) or DEFAULT_PACKAGE)
    except (ImportError, ValueError):
        return {}
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [file for folder in folders for file in Path(folder).rglob("*.py")]
    if spec is not None and spec.origin and not folders:
        files.append(Path(spec.origin))
    stats = ((str(file), _stat_file(file)) for file in files)
    return {name: stat for name, stat in stats if stat is not None}


def end_when_changed(
    environ: Mapping[str, str], server: uvicorn.Server
) -> AbstractContextManager[None]:
    """End the server once the declarations have changed, while the context is open."""

    def end() -> None:
        _LOGGER.warning("The declarations have changed; the server ends, to be restarted.")
        server.should_exit = True

    return watch_declarations(environ, end)


@contextmanager
def watch_declarations(
    environ: Mapping[str, str], on_change: Callable[[], None], seconds: float = POLL_SECONDS
) -> Iterator[None]:
    """Call `on_change` once when a file is changed, added or removed, while the context is open.

    While the files have a mistake, only that is logged, and the server continues as before.
    """
    last_marks, ended = read_marks(environ), threading.Event()

    def look() -> None:
        nonlocal last_marks
        while not ended.wait(seconds):
            marks = read_marks(environ)
            if marks == last_marks:
                continue
            last_marks = marks
            if not (mistake := find_mistake(environ)):
                on_change()
                return
            _LOGGER.warning("The declarations before the last change are kept: %s", mistake)

    thread = threading.Thread(target=look, name="following declarations", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def find_mistake(environ: Mapping[str, str]) -> str:
    """Why a new process cannot load the declarations; empty if it can."""
    command = [sys.executable, "-c", _LOAD, json.dumps(sys.path)]
    process = subprocess.run(
        command, env=dict(environ), capture_output=True, text=True, check=False
    )
    return process.stderr.strip() or f"exit code {process.returncode}" if process.returncode else ""


def _stat_file(file: Path) -> tuple[int, int] | None:
    try:
        stat = os.stat(file)  # noqa: PTH116 - one call for both
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
