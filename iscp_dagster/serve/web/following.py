"""Ends the server when the declarations change, so that whoever keeps it up starts it anew."""

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

from iscp_dagster.api.discovery import DEFAULT
from iscp_dagster.model.imports import ASSETS

if TYPE_CHECKING:
    import uvicorn

SECONDS = 1.0
"""Between two looks at the files."""
_LOGGER = logging.getLogger(__name__)
_LOAD = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[1])
from iscp_dagster.api.discovery import declared, declared_endpoints
from iscp_dagster.model.errors import IscpError
try:
    declared(os.environ), declared_endpoints(os.environ)
except IscpError as error:
    sys.exit(str(error))
"""

Marks = Mapping[str, tuple[int, int]]


def marks(environ: Mapping[str, str]) -> Marks:
    """Time and size of each file of the package that declares the location's tables.

    Empty if there is no such package.
    """
    try:
        spec = find_spec(environ.get(ASSETS) or DEFAULT)
    except (ImportError, ValueError):
        return {}
    places = list(spec.submodule_search_locations or ()) if spec else []
    files = [file for place in places for file in Path(place).rglob("*.py")]
    if spec is not None and spec.origin and not places:
        files.append(Path(spec.origin))
    found = ((str(file), _stat(file)) for file in files)
    return {name: stat for name, stat in found if stat is not None}


def end_when_changed(
    environ: Mapping[str, str], server: uvicorn.Server
) -> AbstractContextManager[None]:
    """End the server once the declarations have changed, while the context is open."""

    def end() -> None:
        _LOGGER.warning("The declarations have changed; the server ends, to be started anew.")
        server.should_exit = True

    return following(environ, end)


@contextmanager
def following(
    environ: Mapping[str, str], changed: Callable[[], None], seconds: float = SECONDS
) -> Iterator[None]:
    """Call `changed` once when a file has changed, come or gone, while the context is open.

    While the files have a mistake, only that is logged: who serves goes on as before it.
    """
    seen, ended = marks(environ), threading.Event()

    def look() -> None:
        nonlocal seen
        while not ended.wait(seconds):
            found = marks(environ)
            if found == seen:
                continue
            seen = found
            if not (wrong := mistake_in(environ)):
                changed()
                return
            _LOGGER.warning("The declarations before the last change are kept: %s", wrong)

    thread = threading.Thread(target=look, name="following declarations", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def mistake_in(environ: Mapping[str, str]) -> str:
    """Why the declarations cannot be loaded anew, as a new process does; empty if they can."""
    loading = [sys.executable, "-c", _LOAD, json.dumps(sys.path)]
    done = subprocess.run(loading, env=dict(environ), capture_output=True, text=True, check=False)
    return done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else ""


def _stat(file: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - one call for both
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
