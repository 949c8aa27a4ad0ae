"""The rules that the whole project follows: lint, format, types, and its public names."""

import re
import subprocess
import sys

import pytest

import iscp_dagster
from support.paths import ROOT


def passes(*command):
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_lint():
    passes("ruff", "check", "--no-cache")


def test_format():
    passes("ruff", "format", "--check", "--no-cache")


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_types(tmp_path):
    passes("mypy", "--cache-dir", str(tmp_path))


WRITES = re.compile(r"""client(\(\))?\.(raw_)?insert|"(INSERT INTO|REPLACE PARTITION)""")


def test_rows_come_into_clickhouse_in_few_places():
    """Rows of the source only by `insert`, with the settings for exactly once."""
    package = ROOT / "iscp_dagster"
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        # The embedded server carries out what others ask for.
        if "local" not in path.parts and WRITES.search(path.read_text())
    }
    assert found == {
        "clickhouse/write/inserts.py",
        # The states' compare-and-set.
        "batches/keepermap.py",
        # Marks of where histories begin, in a staging table, and what is staged put in place.
        "clickhouse/tables/indexes.py",
        # Frames of people's own assets, staged and put in place.
        "clickhouse/tables/frames.py",
        # Empty partitions, put in place of what is dropped.
        "clickhouse/tables/generations.py",
    }


def test_the_public_names():
    declared = ["FullText", "Index", "Mirror", "SourceTable", "Vector"]
    assert set(declared) <= set(iscp_dagster.__all__)
    assert sorted(iscp_dagster.__all__) == iscp_dagster.__all__
    assert all(hasattr(iscp_dagster, name) for name in iscp_dagster.__all__)
