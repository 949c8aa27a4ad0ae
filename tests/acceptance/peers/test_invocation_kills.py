"""Runtimes, endpoints and databases are killed, and each invocation ends with its output, once."""

import itertools
import time
from contextlib import ExitStack
from random import Random

import pytest

from sql_transactions.testing import run_postgres
from support.invocations.killable_processes import SILENT_SECONDS
from support.invocations.killable_stack import DATABASE, ENDPOINT, RUNTIME, MortalStack
from support.workers.soak_length import soak_seconds

SLEEP, LONG_SLEEP = 0.2, 3.0
"""The long one still lasts when its entry is stored; a short one is completed with that, and
nothing fires.
"""
HOUR = 3_600
KILLS = [(RUNTIME, "after Run"), (DATABASE, "after Sleep")]
KILLS += [(RUNTIME, "after fire"), (ENDPOINT, "in run")]
"""Between entry and ack, in a sleep, between commit and completion, and in a Run; in this order."""
POINTS = [
    f"{when} {what}"
    for what in ("Run", "Sleep", "fire", "Call", "Output", "finish")
    for when in ("before", "after")
]
VICTIMS = [RUNTIME, ENDPOINT, DATABASE]
SOAK_SECONDS = soak_seconds(240)
AT_ONCE = 8


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """Run them for the whole module; what is killed is started again."""
    folder = tmp_path_factory.mktemp("mortals")
    with ExitStack() as exits:
        database = exits.enter_context(run_postgres(folder))
        stack = MortalStack(folder, database)
        exits.callback(stack.end)
        stack.start()
        yield stack


def kill_at(stack, kills):
    """Make a trip in which each victim is killed when a process comes to its point."""
    for _, point in kills:
        stack.gates.arm(point)
    id_, file = stack.begin(LONG_SLEEP if any("fire" in point for _, point in kills) else SLEEP)
    for victim, point in kills:
        pid = stack.gates.await_process(point)
        if victim == RUNTIME and point == "in run":
            pid = stack.find_driver(id_)
        stack.strike(victim, pid)
        stack.gates.open(point)
    effects = stack.await_end(id_, file)
    stack.await_tally()
    return effects


def test_a_trip_ends_once_whoever_is_killed(stack, record_property):
    effects = kill_at(stack, KILLS)
    # An acknowledged effect never happens again; another may, in whatever process continues.
    assert effects["run 0"] == 1
    assert effects["run 1"] <= 2
    record_property("effects", dict(effects))


@pytest.mark.soak
def test_a_runtime_that_others_took_for_dead_changes_nothing(stack, record_property):
    stack.gates.arm("before Run")
    id_, file = stack.begin(SLEEP)
    zombie = stack.find_runtime(stack.gates.await_process("before Run"))
    # It stands before its commit, and its beat stands still: the other one takes over.
    effects = stack.await_end(id_, file)
    stack.gates.open("before Run")
    # It answers when it is past its commit.
    answer = stack.http.post(f"{zombie.url}/Trips/greet", json="again", timeout=30)
    assert answer.json() == "hello again", stack.output
    assert stack.await_end(id_, file) == effects
    stack.await_tally()
    record_property("effects", dict(effects))


@pytest.mark.soak
def test_a_clock_that_is_put_back_delays_nothing(stack, record_property):
    stack.gates.arm("after Sleep")
    id_, file = stack.begin(SLEEP)
    pid = stack.gates.await_process("after Sleep")
    (stack.folder / "clock").write_text(str(HOUR))
    stack.gates.open("after Sleep")
    start = time.monotonic()
    effects = stack.await_end(id_, file)
    # The runtime that is started again has nothing but the clock; the other one knows better.
    stack.strike(RUNTIME, pid)
    effects += stack.await_end(*stack.begin(SLEEP))
    assert time.monotonic() - start < HOUR / 60
    record_property("counted", stack.await_tally())
    (stack.folder / "clock").unlink()
    record_property("effects", dict(effects))


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 600)
def test_trips_end_once_through_hundreds_of_kills(stack, record_property):
    for victim, point in itertools.product(VICTIMS, [*POINTS, "in run"]):
        kill_at(stack, [(victim, point)])
    chance, end = Random(1), time.monotonic() + SOAK_SECONDS
    while time.monotonic() < end:
        trips = [stack.begin(chance.random()) for _ in range(AT_ONCE)]
        for _ in range(chance.randrange(1, 4)):
            time.sleep(chance.random() * SILENT_SECONDS)
            stack.strike(chance.choice(VICTIMS), chance.choice(stack.runtimes).process.pid)
        for id_, file in trips:
            stack.await_end(id_, file)
        stack.await_tally()
    record_property("counts", dict(stack.counts))
