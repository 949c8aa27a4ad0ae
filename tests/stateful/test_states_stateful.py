"""Every state store against a dict: runs that race, wake up late, and lose answers."""

from __future__ import annotations

import uuid
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from iscp_dagster.batches import StateKey, StateStore, StateWrite, StoredState, make_state_store
from iscp_dagster.model.batch import BatchRecord, Phase, Range
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.moment import Moment

pytestmark = pytest.mark.slow

NAMES = ["acme", "it's\n\\", "é"]
names = st.sampled_from(NAMES)
some_names = st.lists(names, min_size=1, unique=True)
runs = st.sampled_from(["r1", "r2"])
ends = st.integers(1, 3)
phases = st.sampled_from(Phase)
places = st.integers(0, 10**6)


def plain(held: StoredState | None) -> Any:
    """A held state as values that compare down to the microsecond."""
    if held is None:
        return None
    range_, layout = held.record.range, dict(held.record.layout)
    moments = [(moment.version, moment.micros) for moment in (range_.from_, range_.to)]
    return held.fence, held.holder, moments, held.record.phase, layout


class StatesMachine(RuleBasedStateMachine):
    """`there` is the model; `seen` is all that runs have read, `sent` all that they sent."""

    def __init__(self, store: StateStore) -> None:
        super().__init__()
        self.store = store
        table = uuid.uuid4().hex
        self.keys = {
            name: StateKey(tenant=name, table_id=table, job_name="mirror", registration=number)
            for number, name in enumerate(NAMES)
        }
        self.there: dict[StateKey, Any] = {}
        self.seen: dict[StateKey, list[StoredState | None]] = {
            key: [None] for key in self.keys.values()
        }
        self.sent: list[StateWrite] = []
        self.numbers = count()

    @rule(chosen=some_names, run=runs, to=ends, phase=phases)
    def advance(self, chosen, run, to, phase):
        """A run that has read a moment ago."""
        found = self.store.read([self.keys[name] for name in chosen])
        for name in chosen:
            self.tell(self.keys[name], found.get(self.keys[name]))
        self.write([self.due(name, run, to, phase, found.get(self.keys[name])) for name in chosen])

    @rule(chosen=some_names, run=runs, to=ends, phase=phases, place=places)
    def wake_up(self, chosen, run, to, phase, place):
        """A zombie: what it has seen is any moment of the past."""
        seen = {name: self.seen[self.keys[name]] for name in chosen}
        past = {name: told[place % len(told)] for name, told in seen.items()}
        self.write([self.due(name, run, to, phase, past[name]) for name in chosen])

    @precondition(lambda self: self.sent)
    @rule(place=places)
    def repeat(self, place):
        """A run whose answer was lost, at once or long ago."""
        self.write([self.sent[place % len(self.sent)]])

    @precondition(lambda self: self.sent)
    @rule()
    def repeat_at_once(self):
        self.write([self.sent[-1]])

    @rule(chosen=some_names)
    def forget(self, chosen):
        keys = [self.keys[name] for name in chosen]
        gone = [self.there.pop(key) for key in keys if key in self.there]
        assert self.store.forget(keys) == len(gone)

    @invariant()
    def holds_what_the_model_holds(self):
        found = self.store.read(list(self.keys.values()))
        assert {key: plain(held) for key, held in found.items()} == self.there

    def due(self, name, run, to, phase, seen) -> StateWrite:
        range_ = Range(from_=Moment(0, 5), to=Moment(to, next(self.numbers) % 2))
        record = BatchRecord(range=range_, phase=phase, layout={"to": [to]})
        return StateWrite(key=self.keys[name], record=record, holder=run, expected=seen)

    def write(self, writes: list[StateWrite]) -> None:
        self.sent += writes
        outcomes = self.store.write_many(writes)
        assert set(outcomes) == {write.key for write in writes}
        for write in writes:
            self.check(write, outcomes[write.key])

    def check(self, write: StateWrite, outcome: StoredState | FenceError) -> None:
        there, new = self.there.get(write.key), plain(write.new_state)
        if there not in (plain(write.expected), new):
            assert isinstance(outcome, FenceError)
            return
        assert plain(outcome) == new
        self.there[write.key] = new
        self.tell(write.key, outcome)

    def tell(self, key: StateKey, held: StoredState | None) -> None:
        self.seen[key].append(held)


@pytest.mark.parametrize(
    ("kind", "examples"), [("memory", 100), ("sqlite", 10), ("postgresql", 4), ("keepermap", 4)]
)
def test_every_store_does_what_a_dict_would(kind, examples, request, tmp_path):
    store = opened(kind, request, tmp_path)
    run_state_machine_as_test(
        lambda: StatesMachine(store),
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def opened(kind: str, request, tmp_path) -> StateStore:
    if kind == "memory":
        store = make_state_store("memory")
    elif kind == "keepermap":
        store = make_state_store("keepermap", endpoint=request.getfixturevalue("keeper").endpoint)
    elif kind == "postgresql":
        store = make_state_store("sql", log_url=request.getfixturevalue("postgres"))
    else:
        store = make_state_store("sql", log_url=f"sqlite:///{tmp_path}/log.db")
    store.ensure()
    return store
