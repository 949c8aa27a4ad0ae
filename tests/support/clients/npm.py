"""Programs of other people's packages from npm, which are installed where tests need them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PACKAGES = ("graphql@16.15.0", "graphql-http@1.23.1", "graphql-ws@6.4.2", "ws@8.23.0")
OPTIONS = ("--no-audit", "--no-fund", "--no-save", "--ignore-scripts", "--fetch-retries=0")
NODE_MAJOR = 20
"""The oldest that graphql-ws runs on."""
INSTALL_SECONDS = 120


def install_packages(folder: Path) -> Path:
    """Install the packages into a folder; skip, with the reason, where they cannot be had."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    version = _run(("node", "--version"), folder).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < NODE_MAJOR:
        pytest.skip(f"needs node {NODE_MAJOR} or newer, and this is {version}")
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    try:
        run = _run(("npm", "install", *OPTIONS, *PACKAGES), folder)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install {PACKAGES} in {INSTALL_SECONDS} s")
    if run.returncode:
        pytest.skip(f"npm cannot install {PACKAGES}: {run.stderr.strip().splitlines()[:2]}")
    return folder


def node_command(packages: Path, program: str, *arguments: str) -> list[str]:
    """Return the command that runs a program of this folder with the installed packages."""
    return ["node", shutil.copy(HERE / program, packages), *arguments]


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS
    )
