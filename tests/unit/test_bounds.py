"""How much one iteration takes on, and how long a job waits after failures."""

from __future__ import annotations

from datetime import timedelta
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.core.backoff import FIRST, LONGEST, backoff
from iscp_dagster.core.bounds import Bounds
from iscp_dagster.core.errors import ConfigError

sizes = st.lists(st.integers(0, 50), min_size=1, max_size=20)


@given(sizes=sizes, versions=st.integers(1, 25), most=st.integers(1, 200))
def test_a_step_takes_what_fits_and_always_something(sizes, versions, most):
    written = list(enumerate(sizes, start=1))
    last = Bounds(versions=versions, bytes=most).last(0, len(sizes), written)
    totals = dict(enumerate(accumulate(sizes), start=1))
    assert 1 <= last <= min(versions, len(sizes))
    assert totals[last] <= most or last == 1
    if last < min(versions, len(sizes)):
        assert totals[last + 1] > most


def test_several_changes_of_one_version_are_one_step():
    assert Bounds(bytes=10).last(3, 6, [(4, 8), (4, 8), (5, 1)]) == 4


def test_where_the_log_does_not_say_the_versions_bound():
    assert Bounds(versions=2).last(3, 9, ()) == 5


@pytest.mark.parametrize("wrong", [{"versions": 0}, {"bytes": 0}])
def test_bounds_that_let_nothing_through_are_refused(wrong):
    with pytest.raises(ConfigError, match="at least one"):
        Bounds(**wrong)


def test_the_wait_doubles_up_to_a_limit():
    assert [backoff(n) for n in range(4)] == [timedelta(0), FIRST, 2 * FIRST, 4 * FIRST]
    assert backoff(8) == LONGEST
    assert backoff(10**9) == LONGEST
