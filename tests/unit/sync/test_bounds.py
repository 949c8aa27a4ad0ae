"""How much one iteration takes, and how long a job waits after failures."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import accumulate
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.api.environment import parse_bounds
from iscp_dagster.clickhouse.write.chunks import MOST_CHUNKS, ROWS_PER_CHUNK
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import JobStatus
from iscp_dagster.planning.triggers.backoff import (
    FIRST,
    LONGEST,
    SKEW,
    compute_backoff,
    is_backing_off,
)
from iscp_dagster.sync.bounds import IterationBounds
from support.errors import raises_naming

volumes = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=20)
most = st.integers(1, 200)


@given(volumes=volumes, versions=st.integers(1, 25), bytes_=most, rows=most)
def test_a_step_takes_what_fits_and_always_something(volumes, versions, bytes_, rows):
    written = list(enumerate(volumes, start=1))
    bounds = IterationBounds(versions=versions, bytes=bytes_, rows=rows)
    last = bounds.find_last_version(0, len(volumes), written)
    sizes, counts = (list(accumulate(each)) for each in zip(*volumes, strict=True))

    def fits(version):
        return sizes[version - 1] <= bytes_ and counts[version - 1] <= rows

    assert 1 <= last <= min(versions, len(volumes))
    assert fits(last) or last == 1
    if last < min(versions, len(volumes)):
        assert not fits(last + 1)


def test_several_changes_of_one_version_are_one_step_and_without_volumes_only_versions_bound():
    written = [(4, (8, 1)), (4, (8, 1)), (5, (1, 1))]
    assert IterationBounds(bytes=10).find_last_version(3, 6, written) == 4
    assert IterationBounds(versions=2).find_last_version(3, 9, ()) == 5


def test_a_job_narrows_the_bounds_of_its_iteration_and_widens_none():
    limits = [(0, 0), (9, 70), (3, 900)]
    details = [SimpleNamespace(max_versions=most, max_bytes=size) for most, size in limits]
    jobs = [SimpleNamespace(spec=SimpleNamespace(detail=detail)) for detail in details]
    bounds = IterationBounds(versions=5, bytes=100)
    assert bounds.tighten_for_jobs(jobs[:1]) == bounds
    assert bounds.tighten_for_jobs(jobs[:2]) == replace(bounds, bytes=70)
    assert bounds.tighten_for_jobs(jobs) == replace(bounds, versions=3, bytes=70)


@pytest.mark.parametrize("limit", ["versions", "bytes", "rows"])
def test_bounds_that_let_nothing_through_are_refused(limit):
    with raises_naming(ConfigError, f"{limit}=0"):
        IterationBounds(**{limit: 0})


def test_an_iteration_takes_as_many_rows_as_clickhouse_remembers_tokens_for():
    assert IterationBounds().rows == MOST_CHUNKS * ROWS_PER_CHUNK


def test_the_wait_doubles_up_to_a_limit():
    assert [compute_backoff(n) for n in range(4)] == [timedelta(0), FIRST, 2 * FIRST, 4 * FIRST]
    assert compute_backoff(8) == LONGEST
    assert compute_backoff(10**9) == LONGEST


def test_no_job_waits_for_a_wrong_clock():
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    for ended, waiting in {-FIRST: False, -FIRST / 2: True, SKEW: True, 2 * SKEW: False}.items():
        assert is_backing_off(JobStatus(end_at=now + ended, attempts=1), now) is waiting
    assert not is_backing_off(JobStatus(), now)


def test_the_environment_bounds_how_much_an_iteration_takes():
    environ = {"ISCP_MAX_VERSIONS": "7", "ISCP_MAX_BYTES": ""}
    assert parse_bounds(environ) == replace(IterationBounds(), versions=7)
    with raises_naming(ConfigError, "ISCP_MAX_BYTES", "'all'"):
        parse_bounds({"ISCP_MAX_BYTES": "all"})
