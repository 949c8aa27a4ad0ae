"""The rules that the whole project follows: lint, format, types, and its public names."""

import re
import subprocess
import sys

import pytest

import iscp_dagster
from support.paths import ROOT


def run_checker(*command):
    run = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("command", [("check",), ("format", "--check")])
def test_ruff(command):
    run_checker("ruff", *command, "--no-cache")


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_types(tmp_path):
    run_checker("mypy", "--cache-dir", str(tmp_path))


WRITES = re.compile(r"""client(\(\))?\.(raw_)?insert|"(INSERT INTO|REPLACE PARTITION)""")


def test_rows_come_into_clickhouse_in_few_places():
    """Rows of the source only by `insert`, with the settings for exactly once."""
    package = ROOT / "iscp_dagster"
    files = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        # The embedded server carries out what others ask for.
        if "local" not in path.parts and WRITES.search(path.read_text())
    }
    assert files == {
        "clickhouse/write/inserts.py",
        # The states' compare-and-set.
        "batchstates/keepermap.py",
        # Marks of where histories begin, in a staging table, and what is staged put in place.
        "clickhouse/tables/index_store.py",
        # Frames of users' own assets, staged and put in place.
        "clickhouse/tables/frames.py",
        # Empty partitions, put in place of what is dropped.
        "clickhouse/tables/generations.py",
        # Tombstones, in a staging table, for what a build lacks or what is dropped.
        "clickhouse/tables/buckets.py",
    }


def test_the_public_names():
    assert sorted(iscp_dagster.__all__) == iscp_dagster.__all__
    assert all(hasattr(iscp_dagster, name) for name in iscp_dagster.__all__)
