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

from iscp_dagster.batchstates import StateKey, StateStore, StateWrite, StoredState, make_state_store
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


def plain(state: StoredState | None) -> Any:
    """Return a state as values that compare down to the microsecond."""
    if state is None:
        return None
    range_, layout = state.record.range, dict(state.record.layout)
    moments = [(moment.version, moment.micros) for moment in (range_.from_, range_.to)]
    return state.fence, state.holder, moments, state.record.phase, layout


class StatesMachine(RuleBasedStateMachine):
    """`model` has the states as they must be; runs have read `states` and written `writes`."""

    def __init__(self, store: StateStore) -> None:
        super().__init__()
        self.store = store
        table = uuid.uuid4().hex
        self.keys = {
            name: StateKey(tenant=name, table_id=table, job_name="mirror", registration=number)
            for number, name in enumerate(NAMES)
        }
        self.model: dict[StateKey, Any] = {}
        self.states: dict[StateKey, list[StoredState | None]] = {
            key: [None] for key in self.keys.values()
        }
        self.writes: list[StateWrite] = []
        self.numbers = count()

    @rule(chosen=some_names, run=runs, to=ends, phase=phases)
    def advance(self, chosen, run, to, phase):
        """A run that has just read the states."""
        keys = [self.keys[name] for name in chosen]
        states = self.store.read(keys)
        for key in keys:
            self.states[key].append(states.get(key))
        self.write([self.plan(key, run, to, phase, states.get(key)) for key in keys])

    @rule(chosen=some_names, run=runs, to=ends, phase=phases, place=places)
    def wake_up(self, chosen, run, to, phase, place):
        """A zombie, which has read the states at any moment of the past."""
        keys = [self.keys[name] for name in chosen]
        past = {key: self.states[key][place % len(self.states[key])] for key in keys}
        self.write([self.plan(key, run, to, phase, past[key]) for key in keys])

    @precondition(lambda self: self.writes)
    @rule(place=places | st.just(-1))
    def repeat(self, place):
        """A run whose answer was lost, at once (-1) or long ago."""
        self.write([self.writes[place % len(self.writes)]])

    @rule(chosen=some_names)
    def forget(self, chosen):
        keys = [self.keys[name] for name in chosen]
        states = [self.model.pop(key) for key in keys if key in self.model]
        assert self.store.forget(keys) == len(states)

    @invariant()
    def the_store_agrees_with_the_model(self):
        states = self.store.read(list(self.keys.values()))
        assert {key: plain(state) for key, state in states.items()} == self.model

    def plan(self, key, run, to, phase, state) -> StateWrite:
        range_ = Range(from_=Moment(0, 5), to=Moment(to, next(self.numbers) % 2))
        record = BatchRecord(range=range_, phase=phase, layout={"to": [to]})
        return StateWrite(key=key, record=record, holder=run, expected=state)

    def write(self, writes: list[StateWrite]) -> None:
        self.writes += writes
        outcomes = self.store.write_many(writes)
        assert set(outcomes) == {write.key for write in writes}
        for write in writes:
            self.check(write, outcomes[write.key])

    def check(self, write: StateWrite, outcome: StoredState | FenceError) -> None:
        now, new = self.model.get(write.key), plain(write.new_state)
        if now not in (plain(write.expected), new):
            assert isinstance(outcome, FenceError)
            return
        assert plain(outcome) == new
        self.model[write.key] = new
        self.states[write.key].append(outcome)


@pytest.mark.parametrize(
    ("kind", "examples"),
    [
        *(("memory", 30), ("sqlite", 5), ("postgresql", 3)),
        pytest.param("keepermap", 10, marks=pytest.mark.soak),
    ],
)
def test_every_store_behaves_as_a_dict(kind, examples, request, tmp_path):
    store = open_store(kind, request, tmp_path)
    run_state_machine_as_test(
        lambda: StatesMachine(store),
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def open_store(kind: str, request, tmp_path) -> StateStore:
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
