"""The demo as a newcomer runs it: in a fresh clone, with an empty HOME.

The clone is of the work tree: the files that git knows or would add. Its Python is the one that
runs the tests, which the launcher has set up: another set-up would show nothing new.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT
from stackfixture import clean_environment, free_ports

from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.local.services.lock import HomeLocks
from iscp_dagster.local.spark.server import JAVA_OPTIONS_VARIABLE
from iscp_dagster.model.moment import START

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def cloned(folder: Path) -> Path:
    """The project as git has it, or would have it, in `folder`."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    found = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"needs git and a repository to clone: {found.stderr.strip()}")
    for name in filter(None, found.stdout.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def newcomer(home: Path) -> dict[str, str]:
    """An environment with nothing fetched yet."""
    environ = clean_environment(home / "unused") | free_ports()
    # Its rows are enough for Java to gain by what the other tests do without.
    asked = (JAVA_OPTIONS_VARIABLE, "ISCP_HOME", "ISCP_JARS")
    for name in (*asked, "PYTHONPATH", "VIRTUAL_ENV", "XDG_CACHE_HOME"):
        environ.pop(name, None)
    return environ | {"HOME": str(home), "COLUMNS": "80"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    clone = cloned(tmp_path_factory.mktemp("a fresh clone"))
    environ = newcomer(home) | {"PYTHONPATH": str(clone)}
    done = subprocess.run(
        [sys.executable, "-m", "iscp_dagster.cli.main", "demo"],
        cwd=clone,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    return clone, done


def test_it_succeeds_and_leaves_nothing_running(demo):
    clone, done = demo
    assert done.returncode == 0, done.stdout + done.stderr
    assert HomeLocks(clone / ".iscp").gone()


def test_every_partition_of_every_index_is_in_step_and_verified(demo):
    _, done = demo
    rows = [line for line in done.stdout.splitlines() if line.rstrip().endswith("yes")]
    assert len(rows) == 30, done.stdout
    assert all(line.split()[-2:] == ["yes", "yes"] for line in rows)
    total = re.search(r"30 partitions, ([\d,]+) rows compared", done.stdout)
    assert total, done.stdout
    assert int(total[1].replace(",", "")) >= 3 * 20_000


def test_the_change_reached_every_distribution_but_one(demo):
    clone, _ = demo
    jobs = SqlLog(f"sqlite:///{clone / '.iscp' / 'iscp_log.sqlite'}").jobs()
    untouched = loaded_by(clone)[-1]
    for job in jobs:
        if job.key.account == untouched:
            # It moves along in memory, until the hourly flush, which may fall into the demo.
            assert job.status.from_ == START, job
            assert job.watermark.version in {1, 2}, job
        else:
            assert job.watermark.version == 2, job
            assert job.status.from_.version == 1, job
            assert job.status.counts["deleted"] > 0, job
    changed = [job for job in jobs if job.status.counts["inserted"] and job.status.from_ != START]
    assert len({job.key.account for job in changed}) > 5


def loaded_by(clone):
    """The distributions that the demo of the clone takes, in its order."""
    code = "from iscp_dagster.demo.load import installed; print(*installed())"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_three_searches_find_something(demo):
    _, done = demo
    for title in ("Words:", "Meaning:", "SQL:"):
        after = done.stdout.partition(title)[2].splitlines()
        assert len([line for line in after[2:7] if line.strip()]) == 5, title


def test_it_fits_eighty_columns(demo):
    clone, done = demo
    lines = [line for line in done.stdout.splitlines() if str(clone) not in line]
    assert max(map(len, lines)) <= 80, max(lines, key=len)
