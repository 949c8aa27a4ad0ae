"""The demo as a newcomer runs it: a home of its own with a space in its name, an empty HOME."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from stackfixture import clean_environment, free_ports

from iscp_dagster.core.moment import START
from iscp_dagster.demo.load import installed
from iscp_dagster.log.sql import SqlLog
from iscp_dagster.stack.lock import HomeLocks
from iscp_dagster.stack.settings import repository

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo of a newcomer")
    home = folder / "a home"
    environ = clean_environment(home) | free_ports() | {"HOME": str(folder), "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-m", "iscp_dagster.cli", "demo"],
        cwd=repository(),
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    return home, done


def test_it_succeeds_and_leaves_nothing_running(demo):
    home, done = demo
    assert done.returncode == 0, done.stdout + done.stderr
    assert HomeLocks(home).gone()


def test_every_partition_of_every_index_is_in_step_and_verified(demo):
    _, done = demo
    rows = [line for line in done.stdout.splitlines() if line.rstrip().endswith("yes")]
    assert len(rows) == 30, done.stdout
    assert all(line.split()[-2:] == ["yes", "yes"] for line in rows)
    total = re.search(r"30 partitions, ([\d,]+) rows compared", done.stdout)
    assert total, done.stdout
    assert int(total[1].replace(",", "")) >= 3 * 20_000


def test_the_change_reached_every_distribution_but_one(demo):
    home, _ = demo
    jobs = SqlLog(f"sqlite:///{home / 'iscp_log.sqlite'}").jobs()
    untouched = installed()[-1]
    for job in jobs:
        assert job.watermark.version == 2, job
        if job.key.account == untouched:
            assert job.status.from_ == START, job
        else:
            assert job.status.from_.version == 1, job
            assert job.status.counts["deleted"] > 0, job
    changed = [job for job in jobs if job.status.counts["inserted"] and job.status.from_ != START]
    assert len({job.key.account for job in changed}) > 5


def test_the_three_searches_find_something(demo):
    _, done = demo
    for title in ("Words:", "Meaning:", "SQL:"):
        after = done.stdout.partition(title)[2].splitlines()
        assert len([line for line in after[2:7] if line.strip()]) == 5, title


def test_it_fits_eighty_columns(demo):
    home, done = demo
    lines = [line for line in done.stdout.splitlines() if str(home) not in line]
    assert max(map(len, lines)) <= 80, max(lines, key=len)
