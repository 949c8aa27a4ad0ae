"""When an attempt that failed is made again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_invocations.errors import ConfigError
from durable_invocations.runtime.retries import MOST_SECONDS, RetryPolicy
from runtime_support.errors import raises_naming


def test_waits_grow_by_the_factor_up_to_the_cap_and_end_with_the_attempts():
    policy = RetryPolicy(initial=0.1, factor=3, cap=1, attempts=5)
    assert [policy.compute_wait(failed) for failed in range(1, 7)] == pytest.approx(
        [0.1, 0.3, 0.9, 1, None, None]
    )


def test_the_errors_own_delay_takes_the_place_of_one_wait():
    policy = RetryPolicy(initial=1, factor=2, cap=60, attempts=4)
    assert [
        policy.compute_wait(1),
        policy.compute_wait(2, requested=0.25),
        policy.compute_wait(3),
    ] == [1, 0.25, 4]
    assert policy.compute_wait(1, requested=0) == 0
    assert policy.compute_wait(1, requested=1e300) == MOST_SECONDS


def test_the_errors_own_delay_gives_no_more_attempts():
    assert RetryPolicy(attempts=2).compute_wait(2, requested=1) is None


def test_attempts_may_be_unlimited():
    policy = RetryPolicy(attempts=None, cap=7)
    assert policy.compute_wait(10**9) == 7


@given(failed=st.integers(1, 10**6), factor=st.floats(1, 1000), initial=st.floats(0.001, 1))
def test_no_wait_exceeds_the_cap_or_falls_below_the_first(failed, factor, initial):
    policy = RetryPolicy(initial=initial, factor=factor, cap=50, attempts=None)
    assert initial <= policy.compute_wait(failed) <= 50


@pytest.mark.parametrize(
    "values",
    [
        {"initial": 0}, {"initial": -1}, {"initial": 5, "cap": 4}, {"factor": 0.5},
        {"factor": float("inf")}, {"cap": float("inf")}, {"attempts": 0},
        {"initial": float("nan")},
    ],
)  # fmt: skip
def test_an_invalid_policy_is_refused(values):
    name = "cap" if "cap" in values else next(iter(values))
    with raises_naming(ConfigError, name, f"{values[name]:g}"):
        RetryPolicy(**values)
