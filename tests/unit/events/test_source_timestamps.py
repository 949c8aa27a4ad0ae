"""Source timestamps: a type of their own, ordered by version and ordinal."""

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.events.timestamps import SourceTimestamp


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9)), max_size=9))
def test_timestamps_are_ordered_by_version_and_ordinal(places):
    timestamps = [SourceTimestamp(nanos=9, version=v, ordinal=o) for v, o in places]
    assert [(each.version, each.ordinal) for each in sorted(timestamps)] == sorted(places)


@given(st.integers(-(2**53), 2**57))
def test_micros_become_nanoseconds_without_loss(micros):
    timestamp = SourceTimestamp.from_micros(micros, version=3)
    assert (timestamp.nanos, timestamp.text) == (micros * 1_000, f"{micros}000" if micros else "0")


@given(st.datetimes(timezones=st.just(timezone.utc)))
def test_a_time_comes_back_as_it_was(at):
    assert SourceTimestamp.from_datetime(at, version=1).at == at


def test_nanoseconds_finer_than_a_microsecond_are_kept_in_the_text():
    timestamp = SourceTimestamp(nanos=1705316445123456789, version=1)
    assert timestamp.text == "1705316445123456789"
    assert timestamp.at == datetime(2024, 1, 15, 11, 0, 45, 123456, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "mix", [lambda at: at < 1, lambda at: at + 1, int, lambda at: at.nanos + at]
)
def test_a_timestamp_does_not_mix_with_numbers(mix):
    with pytest.raises(TypeError):
        mix(SourceTimestamp(nanos=1, version=1))
    assert SourceTimestamp(nanos=1, version=1) != 1
