"""A virtual environment with restate-sdk, another implementation of the protocol's SDK side."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

VERSION = "0.5.1"
PACKAGES = (f"restate-sdk=={VERSION}", "hypercorn==0.18.0")
INSTALL_SECONDS = 240


def sdk_python() -> Path:
    """Return a Python that has the SDK; made once on a machine, skipped where that fails."""
    if sys.version_info < (3, 11):
        pytest.skip(f"restate-sdk {VERSION} needs Python 3.11")
    folder = Path(tempfile.gettempdir()) / f"iscp_restate_sdk_{VERSION}_{_tag()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        pytest.skip(f"{folder} is another user's")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "whole").exists():
            _make(folder)
    return folder / "venv/bin/python"


def _tag() -> str:
    return f"py{sys.version_info.major}{sys.version_info.minor}_{os.getuid()}"


def _make(folder: Path) -> None:
    _run(sys.executable, "-m", "venv", "--clear", str(folder / "venv"))
    python = str(folder / "venv/bin/python")
    try:
        result = _run(python, "-m", "pip", "install", "-q", "--retries", "1", *PACKAGES)
    except subprocess.TimeoutExpired:
        pytest.skip(f"pip did not install {PACKAGES} in {INSTALL_SECONDS} s")
    if result.returncode:
        pytest.skip(f"pip cannot install {PACKAGES}: {result.stderr.strip().splitlines()[-1:]}")
    (folder / "whole").touch()


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS
    )
