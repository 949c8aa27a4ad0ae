"""Runs Python code in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support.paths import ROOT

SCRIPT_SECONDS = 120


def run_script(code: str, folder: Path = ROOT, environment: Mapping[str, str] | None = None) -> str:
    """Run the code in `folder`, which must succeed; return its output."""
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SCRIPT_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def import_modules(*modules: str) -> set[str]:
    """Import the modules in a new process; return every module that this loads."""
    return set(run_script(f"import sys, {', '.join(modules)}; print(*sys.modules)").split())
