"""The runtime's clock, and the time of its next timer."""

import pytest

from durable_invocations.runtime.timers import Due, SteadyClock


class Machine:
    """A machine's clocks, in seconds."""

    def __init__(self):
        self.wall, self.monotonic = 1_000.0, 5.0

    def wait(self, seconds):
        self.wall += seconds
        self.monotonic += seconds


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def clock(machine):
    return SteadyClock(lambda: machine.wall, lambda: machine.monotonic)


def test_time_passes_as_on_the_machine(machine, clock):
    assert clock() == 1_000_000
    machine.wait(1.5)
    assert clock() == 1_001_500


def test_a_clock_put_back_does_not_hold_time_up(machine, clock):
    machine.wall -= 3_600
    machine.wait(2)
    assert clock() == 1_002_000
    machine.wait(2)
    assert clock() == 1_004_000


def test_the_clock_knows_how_far_it_is_ahead_of_the_machine(machine, clock):
    machine.wait(1.5)
    assert clock.get_lead() == 0
    machine.wall -= 3_600
    assert clock.get_lead() == 3_600_000
    machine.wall += 3_601
    assert clock.get_lead() == 0


def test_a_clock_put_forward_is_followed(machine, clock):
    machine.wall += 3_600
    assert clock() == 4_600_000
    machine.wait(1)
    assert clock() == 4_601_000


def test_the_earliest_moment_counts():
    due = Due()
    assert due.compute_wait(0) is None
    assert due.note_due(5_000)
    assert not due.note_due(6_000)
    assert not due.note_due(None)
    assert due.note_due(4_000)
    assert due.compute_wait(1_000) == 3.0
    assert due.compute_wait(9_000) == 0.0
    due.reset()
    assert due.compute_wait(0) is None
