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
"""The value of a row; None: there is no such row, 0: its value is NULL."""


def evaluate(value):
    """Match from HIGH, unmatch below LOW; NULL meets neither."""
    return ConditionResult(match=bool(value) and value >= HIGH, unmatch=bool(value) and value < LOW)


def make_change(key, before, after, version, operation=None, evaluate=evaluate):
    """Return the change of a row by a commit; without an operation, the one of its images."""
    if operation is None:
        later = ChangeKind.DELETE if after is None else ChangeKind.UPDATE
        operation = ChangeKind.INSERT if before is None else later
    change = RowChange(
        tenant=None,
        key=key,
        operation=operation,
        before=None if before is None else {"v": before},
        after=None if after is None else {"v": after},
        result_before=ConditionResult() if before is None else evaluate(before),
        result_after=ConditionResult() if after is None else evaluate(after),
    )
    return change, SourceTimestamp(nanos=version, version=version)


def make_base(rows):
    return [
        make_change(key, None, value, 0, ChangeKind.BASE)
        for key, value in rows.items()
        if value is not None
    ]


def make_changes(steps):
    """Turn (key, value) steps to changes; the first of each key is an insert."""
    rows, changes = {}, []
    for version, (key, value) in enumerate(steps, start=1):
        before = rows.get(key)
        if before is not None or value is not None:
            changes.append(make_change(key, before, value, version))
        rows[key] = value
    return changes


def list_events(machine, changes):
    events = machine.apply_changes(changes)
    return [(event.type, event.change.key, event.timestamp.version) for event in events]


@pytest.mark.parametrize(
    ("unmatch", "values", "events"),
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
def test_a_trigger_fires_on_the_transition(unmatch, values, events):
    machine = TriggerMachine(Hysteresis(has_unmatch=unmatch))
    fired = list_events(machine, make_changes([("a", value) for value in values]))
    assert [(version, kind) for kind, _, version in fired] == events


def test_match_goes_before_unmatch_so_that_the_same_row_again_fires_nothing():
    def meet_both(_value):
        return ConditionResult(match=True, unmatch=True)

    values = [None, 1, 1, 1]
    changes = [
        make_change("a", before, after, version, evaluate=meet_both)
        for version, (before, after) in enumerate(pairwise(values))
    ]
    machine = TriggerMachine(Hysteresis(has_unmatch=True))
    assert list_events(machine, changes) == [(MATCH, "a", 0)]


@pytest.mark.parametrize("unmatch", [False, True])
@pytest.mark.parametrize("initial", list(InitialMode))
def test_rows_that_matched_before_the_trigger_do_not_fire_again_and_clear(initial, unmatch):
    machine = TriggerMachine(Hysteresis(has_unmatch=unmatch), active=["stale"])
    seeded = machine.seed(make_base({"a": 6, "b": 4}), initial)
    events = [(event.type, event.change.key) for event in seeded]
    assert events == ([(MATCH, "a")] if initial is InitialMode.FIRE else [])
    assert (machine.active, machine.removed) == ({"a"}, {"stale"})
    later = [make_change("a", 6, 7, 1), make_change("b", 4, 4, 2), make_change("a", 7, 2, 3)]
    assert list_events(machine, later) == [(UNMATCH, "a", 3)]


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ({"a"}, 4, {"a"}),
        (set(), 4, set()),
        (set(), 6, {"a"}),
        ({"a"}, 2, set()),
        ({"a"}, None, set()),
    ],
)
def test_a_gap_is_reconciled_without_an_event(before, value, after):
    machine = TriggerMachine(Hysteresis(has_unmatch=True), active=before)
    machine.reconcile(make_base({"a": value}))
    assert machine.active == after


@given(st.lists(st.tuples(st.sampled_from(KEYS), ROWS), max_size=20), st.booleans(), st.data())
def test_cuts_and_the_order_of_other_keys_make_no_difference(steps, unmatch, data):
    changes = make_changes(steps)
    whole = TriggerMachine(Hysteresis(has_unmatch=unmatch))
    expected = list_events(whole, changes)
    active, events, start = frozenset(), [], 0
    while start < len(changes):
        end = data.draw(st.integers(start + 1, len(changes)), label="cut")
        part = TriggerMachine(Hysteresis(has_unmatch=unmatch), active)
        by_key = sorted(changes[start:end], key=lambda pair: pair[0].key)
        events += list_events(part, by_key)
        assert active | part.added == part.active | part.removed
        active, start = part.active, end
    assert sorted(events, key=lambda event: event[2]) == expected
    assert active == whole.active


class Triggered(RuleBasedStateMachine):
    """A table of rows with a trigger on it; the model keeps one state a key."""

    @initialize(rows=st.dictionaries(st.sampled_from(KEYS), ROWS), unmatch=st.booleans())
    def begin(self, rows, unmatch):
        self.rows = dict.fromkeys(KEYS) | rows
        self.unmatch, self.version, self.events = unmatch, 0, []
        self.machine = TriggerMachine(Hysteresis(has_unmatch=unmatch))
        assert list(self.machine.seed(make_base(self.rows), InitialMode.SKIP)) == []
        self.on = {key: bool(v) and v >= HIGH for key, v in self.rows.items()}

    def is_on(self, key, value):
        """Whether a row is on, in other words than the machine's."""
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
        events = list_events(self.machine, [make_change(key, before, value, self.version)])
        on = self.is_on(key, value)
        kind = MATCH if on else UNMATCH
        assert events == ([(kind, key, self.version)] if on != self.on[key] else [])
        self.events += events
        self.rows[key], self.on[key] = value, on

    @rule(key=st.sampled_from(KEYS), value=ROWS)
    def gap(self, key, value):
        """Lose a commit; the active rows are then set from a snapshot."""
        self.rows[key], self.on[key] = value, self.is_on(key, value)
        self.machine.reconcile(make_base(self.rows))
        self.events = [event for event in self.events if event[1] != key]

    @rule()
    def restart(self):
        self.machine = TriggerMachine(self.machine.hysteresis, self.machine.active)

    @invariant()
    def active_rows_agree_with_the_model(self):
        if hasattr(self, "on"):
            assert self.machine.active == {key for key, on in self.on.items() if on}

    @invariant()
    def match_and_unmatch_take_turns(self):
        for key in KEYS:
            kinds = [event[0] for event in getattr(self, "events", []) if event[1] == key]
            assert all(one is not other for one, other in pairwise(kinds))


TestTriggered = Triggered.TestCase
TestTriggered.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
