"""Triggers fire on transitions: the machine compared with a small model."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from iscp_dagster.events.changes import ConditionResult, RowChange
from iscp_dagster.events.hysteresis import EventType, Hysteresis, InitialMode, TriggerMachine
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.model.declared.images import ChangeKind

MATCH, UNMATCH = EventType.MATCH, EventType.UNMATCH
HIGH, LOW = 5, 3
KEYS = "abc"
ROWS = st.none() | st.integers(0, 8)
"""What a row holds; None: it is not there, 0: its value is NULL."""


def truth(value):
    """Match from HIGH, unmatch below LOW; NULL meets neither."""
    return ConditionResult(match=bool(value) and value >= HIGH, unmatch=bool(value) and value < LOW)


def change(key, before, after, version, operation=None):
    """Return what a commit did to a row, by default the operation that follows from its images."""
    if operation is None:
        changed = ChangeKind.DELETE if after is None else ChangeKind.UPDATE
        operation = ChangeKind.INSERT if before is None else changed
    made = RowChange(
        tenant=None,
        key=key,
        operation=operation,
        before=None if before is None else {"v": before},
        after=None if after is None else {"v": after},
        result_before=ConditionResult() if before is None else truth(before),
        result_after=ConditionResult() if after is None else truth(after),
    )
    return made, SourceTimestamp(nanos=version, version=version)


def base(rows):
    there = {key: value for key, value in rows.items() if value is not None}
    return [change(key, None, value, 0, ChangeKind.BASE) for key, value in there.items()]


def story(steps):
    """Turn (key, value) steps to changes; the first of each key is an insert."""
    rows, told = {}, []
    for version, (key, value) in enumerate(steps, start=1):
        before = rows.get(key)
        if before is not None or value is not None:
            told.append(change(key, before, value, version))
        rows[key] = value
    return told


def fired(machine, changes):
    return [
        (each.type, each.change.key, each.timestamp.version)
        for each in machine.apply_changes(changes)
    ]


@pytest.mark.parametrize(
    ("unmatch", "values", "told"),
    [
        (False, [6, 7, 4, 6], [(1, MATCH), (3, UNMATCH), (4, MATCH)]),
        (False, [6, 0], [(1, MATCH), (2, UNMATCH)]),
        (False, [6, None, 6], [(1, MATCH), (2, UNMATCH), (3, MATCH)]),
        (True, [6, 4, 6, 4, 2, 4, 6], [(1, MATCH), (5, UNMATCH), (7, MATCH)]),
        (True, [6, 0, 6], [(1, MATCH)]),
        (True, [6, None, 6], [(1, MATCH), (2, UNMATCH), (3, MATCH)]),
        (True, [4, 2, None], []),
    ],
)
def test_a_trigger_fires_on_the_transition(unmatch, values, told):
    machine = TriggerMachine(Hysteresis(unmatch=unmatch))
    found = fired(machine, story([("a", value) for value in values]))
    assert [(version, kind) for kind, _, version in found] == told


def test_match_goes_before_unmatch_so_that_the_same_row_again_fires_nothing():
    both = ConditionResult(match=True, unmatch=True)
    image = {"v": 1}
    first = RowChange(
        tenant=None,
        key="a",
        operation=ChangeKind.INSERT,
        before=None,
        after=image,
        result_after=both,
    )
    again = RowChange(
        tenant=None,
        key="a",
        operation=ChangeKind.UPDATE,
        before=image,
        after=image,
        result_before=both,
        result_after=both,
    )
    at = [SourceTimestamp(nanos=v, version=v) for v in range(3)]
    machine = TriggerMachine(Hysteresis(unmatch=True))
    assert fired(machine, [(first, at[0]), (again, at[1]), (again, at[2])]) == [(MATCH, "a", 0)]


@pytest.mark.parametrize("unmatch", [False, True])
@pytest.mark.parametrize("initial", list(InitialMode))
def test_rows_that_matched_before_the_trigger_do_not_fire_again_and_clear(initial, unmatch):
    machine = TriggerMachine(Hysteresis(unmatch=unmatch), active=["stale"])
    seeded = [
        (each.type, each.change.key) for each in machine.seed(base({"a": 6, "b": 4}), initial)
    ]
    assert seeded == ([(MATCH, "a")] if initial is InitialMode.FIRE else [])
    assert (machine.active, machine.removed) == ({"a"}, {"stale"})
    later = [change("a", 6, 7, 1), change("b", 4, 4, 2), change("a", 7, 2, 3)]
    assert fired(machine, later) == [(UNMATCH, "a", 3)]


@pytest.mark.parametrize(
    ("was", "value", "now"), [(1, 4, 1), (0, 4, 0), (0, 6, 1), (1, 2, 0), (1, None, 0)]
)
def test_a_gap_is_reconciled_without_an_event(was, value, now):
    machine = TriggerMachine(Hysteresis(unmatch=True), active=["a"] if was else [])
    machine.reconcile(base({"a": value}))
    assert machine.active == ({"a"} if now else set())


@given(st.lists(st.tuples(st.sampled_from(KEYS), ROWS), max_size=20), st.booleans(), st.data())
def test_cuts_and_the_order_of_other_keys_do_not_matter(steps, unmatch, data):
    changes = story(steps)
    whole = TriggerMachine(Hysteresis(unmatch=unmatch))
    expected = fired(whole, changes)
    active, found, start = frozenset(), [], 0
    while start < len(changes):
        end = data.draw(st.integers(start + 1, len(changes)), label="cut")
        part = TriggerMachine(Hysteresis(unmatch=unmatch), active)
        by_key = sorted(changes[start:end], key=lambda each: each[0].key)
        found += fired(part, by_key)
        assert active | part.added == part.active | part.removed
        active, start = part.active, end
    assert sorted(found, key=lambda each: each[2]) == expected
    assert active == whole.active


class Triggered(RuleBasedStateMachine):
    """A table of rows with a trigger on it; the model keeps one state a key."""

    @initialize(rows=st.dictionaries(st.sampled_from(KEYS), ROWS), unmatch=st.booleans())
    def begin(self, rows, unmatch):
        self.rows = dict.fromkeys(KEYS) | rows
        self.unmatch, self.version, self.told = unmatch, 0, []
        self.machine = TriggerMachine(Hysteresis(unmatch=unmatch))
        assert list(self.machine.seed(base(self.rows), InitialMode.SKIP)) == []
        self.on = {key: bool(v) and v >= HIGH for key, v in self.rows.items()}

    def expected(self, key, value):
        """Say in other words when a row is on."""
        if value is None:
            return False
        if self.unmatch and self.on[key] and not 0 < value < LOW:
            return True
        return value >= HIGH

    @rule(key=st.sampled_from(KEYS), value=ROWS)
    def commit(self, key, value):
        before, self.version = self.rows[key], self.version + 1
        if before is None and value is None:
            return
        found = fired(self.machine, [change(key, before, value, self.version)])
        on = self.expected(key, value)
        kind = MATCH if on else UNMATCH
        assert found == ([(kind, key, self.version)] if on != self.on[key] else [])
        self.told += found
        self.rows[key], self.on[key] = value, on

    @rule(key=st.sampled_from(KEYS), value=ROWS)
    def gap(self, key, value):
        """Lose a commit; a snapshot agrees the set with the rows that there are."""
        on = self.expected(key, value)
        self.rows[key], self.on[key] = value, on
        self.machine.reconcile(base(self.rows))
        self.told = [each for each in self.told if each[1] != key]

    @rule()
    def restart(self):
        self.machine = TriggerMachine(self.machine.condition, self.machine.active)

    @invariant()
    def active_rows_are_those_of_the_model(self):
        if hasattr(self, "on"):
            assert self.machine.active == {key for key, on in self.on.items() if on}

    @invariant()
    def match_and_unmatch_take_turns(self):
        for key in KEYS:
            kinds = [kind for kind, told, _ in getattr(self, "told", []) if told == key]
            assert all(one is not other for one, other in pairwise(kinds))


TestTriggered = Triggered.TestCase
TestTriggered.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
