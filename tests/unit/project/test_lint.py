"""The rules that the whole project follows: lint, format, types, and its public names."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from places import ROOT

import iscp_dagster


def passes(*command):
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_lint():
    passes("ruff", "check", "--no-cache")


def test_format():
    passes("ruff", "format", "--check", "--no-cache")


@pytest.mark.slow
def test_types(tmp_path):
    passes("mypy", "--cache-dir", str(tmp_path))


def test_rows_come_into_clickhouse_in_two_places():
    """`insert`, with the settings for exactly once, and the states' compare-and-set."""
    package = ROOT / "iscp_dagster"
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"client(\(\))?\.(raw_)?insert", path.read_text())
    }
    assert found == {"clickhouse/write/inserts.py", "batches/keepermap.py"}


def test_the_public_names():
    declared = ["FullText", "Index", "Mirror", "SourceTable", "Vector"]
    assert set(declared) <= set(iscp_dagster.__all__)
    assert sorted(iscp_dagster.__all__) == iscp_dagster.__all__
    assert all(hasattr(iscp_dagster, name) for name in iscp_dagster.__all__)
