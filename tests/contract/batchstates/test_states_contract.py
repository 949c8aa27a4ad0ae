"""One suite over every state store: in memory, on SQLite, on PostgreSQL, on KeeperMap."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from iscp_dagster.batchstates import StateKey, StateStore, StateWrite, StoredState, make_state_store
from iscp_dagster.batchstates.compare import is_same, to_text
from iscp_dagster.batchstates.factory import make_opener
from iscp_dagster.batchstates.sql import STATES_METADATA
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.model.batch import BatchRecord, Phase, Range
from iscp_dagster.model.errors import ConfigError, FenceError, SetupError, UnavailableError
from iscp_dagster.model.jobs import TENANT_BYTES
from iscp_dagster.model.moment import START, Moment
from support.errors import assert_names, raises_naming
from support.workers.parallel_processes import PATIENCE, at_once

pytestmark = pytest.mark.slow

KINDS = ["memory", "sqlite", "postgresql", "keepermap"]
PROCESSES = 4
ROUNDS = 8
HOURS = 3_600_000_000

ODD_KEYS = [
    {"tenant": "", "job_name": "mirror"},
    {"tenant": "ñandú 東京 \U0001f980"},
    {"tenant": 'it\'s "quoted" `so` \\ and {x:String} %s'},
    {"tenant": "two\nlines\tand\r\n/../a/b"},
    {"tenant": ("long " * 205)[:TENANT_BYTES]},
    {"job_name": "a/b'c\"d\\e`f", "table_id": "0x/'--"},
    {"job_name": "n" * 5_000},
    {"registration": 2**63 - 1},
]


@pytest.fixture(params=KINDS)
def place(request, tmp_path) -> tuple[str, str]:
    """Return a kind of `state_store` and its place, which tests share: each needs its own keys."""
    if request.param == "memory":
        return "memory", ""
    if request.param == "keepermap":
        return "keepermap", request.getfixturevalue("keeper").url
    if request.param == "postgresql":
        return "sql", request.getfixturevalue("postgres")
    return "sql", f"sqlite:///{tmp_path}/log.db"


@pytest.fixture
def make(place) -> Callable[[], StateStore]:
    """Give a function that opens a store over the same states, as each process would."""
    first = open_store(*place)
    return lambda: first if place[0] == "memory" else open_store(*place)


@pytest.fixture
def store(make) -> StateStore:
    return make()


@pytest.fixture
def key() -> StateKey:
    return make_key()


def open_store(kind: str, url: str) -> StateStore:
    endpoint = ClickHouseEndpoint.parse(url) if kind == "keepermap" else None
    store = make_state_store(kind, log_url=url, endpoint=endpoint)
    store.ensure()
    return store


def make_key(tenant: str = "acme", **parts) -> StateKey:
    """Make a key that no other test has."""
    defaults = {"table_id": str(uuid.uuid4()), "job_name": "mirror", "registration": 1}
    return StateKey(tenant=tenant, **{**defaults, **parts})


def batch(start: int = -1, to: int = 5, phase: Phase = Phase.BEFORE, **layout) -> BatchRecord:
    return BatchRecord(range=Range(from_=moment(start), to=moment(to)), phase=phase, layout=layout)


def moment(version: int) -> Moment:
    return START if version < 0 else Moment(version, version * HOURS + 1)


def test_what_is_written_is_read_back_exactly_by_every_store(make, key):
    layout = {
        "partitions": 2,
        "ratio": 0.1,
        "whole": 1.0,
        "big": 2**60 + 1,
        "names": ["a\0b", "\ud800", "ü", "it's \\ \n", None, True],
        "deep": {"a": {"b": []}},
    }
    written = make().write(key, batch(3, 7, Phase.AFTER, **layout), holder="r'1\\", expected=None)
    assert (written.fence, written.holder) == (1, "r'1\\")
    state = make().read([key])[key]
    assert state == written
    record = state.record
    assert (record.layout, record.phase) == (layout, Phase.AFTER)
    assert type(record.layout["whole"]) is float
    assert (record.range.from_.micros, record.range.to.micros) == (3 * HOURS + 1, 7 * HOURS + 1)


def test_any_name_is_a_key_of_its_own(store, key):
    for odd in (make_key(**parts) for parts in ODD_KEYS):
        plain = replace(odd, tenant="acme", job_name="mirror", registration=7)
        first = store.write(odd, batch(to=1), holder="r1", expected=None)
        assert store.read([odd, plain]) == {odd: first}
        second = store.write(odd, batch(to=2), holder="r1", expected=first)
        assert store.read([odd]) == {odd: second}
        assert store.forget([odd]) == 1
    # So are names that read alike when joined.
    other = replace(key, tenant="acme" + key.table_id[:1], table_id=key.table_id[1:])
    store.write(key, batch(), holder="r1", expected=None)
    assert store.read([other]) == {}


def test_a_write_onto_what_was_never_there_is_refused_and_others_grow_the_fence(store, key):
    imagined = StoredState(record=batch(), fence=1, holder="old")
    with raises_naming(FenceError, key.table_id, "fence 1", "old", "nothing"):
        store.write(key, batch(to=6), holder="old", expected=imagined)
    assert store.read([key]) == {}
    held = None
    for number in range(1, 6):
        held = store.write(key, batch(number, number + 1), holder=f"r{number % 2}", expected=held)
        assert (held.fence, held.holder) == (number, f"r{number % 2}")
        assert store.read([key]) == {key: held}


def test_what_is_seen_must_be_there_down_to_the_microsecond(store, key):
    held = store.write(key, batch(n=1), holder="r1", expected=None)
    for other in (
        {"holder": "r2"},
        {"fence": 2},
        {"record": batch(phase=Phase.AFTER, n=1)},
        {"record": batch(n=2)},
        {"record": replace(batch(n=1), range=Range(from_=START, to=Moment(5, 1)))},
    ):
        with pytest.raises(FenceError):
            store.write(key, batch(to=9), holder="r1", expected=replace(held, **other))
        assert is_same(store.read([key])[key], held), other


def test_a_run_that_was_taken_over_can_neither_write_nor_bring_its_state_back(store, key):
    """It wakes up after each step of its heir, and repeats its first write."""
    before = store.write(key, batch(to=5), holder="zombie", expected=None)
    names = ("'mirror'", "registration 1", "'acme'", key.table_id, "zombie")

    def wake_zombie(*found):
        for record in (batch(to=5, phase=Phase.AFTER), batch(5, 9), batch(to=5)):
            with raises_naming(FenceError, *names, "fence 1", *found) as caught:
                store.write(key, record, holder="zombie", expected=before)
            assert not caught.value.permanent

    state = store.write(key, batch(to=5), holder="heir", expected=before)
    wake_zombie("fence 2", "heir")
    with raises_naming(FenceError, *names, "nothing", "fence 2", "heir"):
        store.write(key, batch(to=5), holder="zombie", expected=None)
    state = store.write(key, batch(to=5, phase=Phase.AFTER), holder="heir", expected=state)
    wake_zombie("fence 3", "heir")
    assert store.read([key]) == {key: state}
    store.forget([key])
    wake_zombie("nothing")
    assert store.read([key]) == {}


def test_a_write_may_be_made_again_when_its_answer_was_lost(make, key):
    held = None
    for to in (1, 2):
        write = {"record": batch(to=to, n=[to]), "holder": "r1", "expected": held}
        first = make().write(key, **write)
        assert make().write(key, **write) == first
        assert make().read([key]) == {key: first}
        held = first
    assert held.fence == 2
    # To make the store ready again keeps what is there.
    store = make()
    store.ensure()
    assert store.read([key]) == {key: held}


def test_what_differs_from_a_write_that_went_through_is_another_write(store, key):
    store.write(key, batch(n=1), holder="r1", expected=None)
    for record, holder in ((batch(n=2), "r1"), (batch(n=1), "r2")):
        with pytest.raises(FenceError):
            store.write(key, record, holder=holder, expected=None)


def test_two_registrations_of_a_job_are_apart(store, key):
    later = replace(key, registration=2)
    first = store.write(key, batch(to=9, phase=Phase.AFTER), holder="r1", expected=None)
    assert store.read([key, later]) == {key: first}
    second = store.write(later, batch(to=1), holder="r2", expected=None)
    assert second.fence == 1
    assert store.forget([key]) == 1
    assert store.read([key, later]) == {later: second}


def test_what_is_forgotten_is_gone_and_may_begin_anew(store, key):
    """So is what was never written."""
    assert store.read([key]) == store.read([]) == store.write_many([]) == {}
    assert store.forget([key]) == 0
    assert store.forget([]) == 0
    held = store.write(key, batch(), holder="r1", expected=None)
    assert store.forget([key, key]) == 1
    assert store.forget([key]) == 0
    with pytest.raises(FenceError):
        store.write(key, batch(to=9), holder="r1", expected=held)
    assert store.write(key, batch(to=9), holder="r2", expected=None).fence == 1


def test_many_keys_are_written_read_and_forgotten_at_once(store, key):
    keys = [replace(key, tenant=f"tenant {number}") for number in range(1_000)]
    fresh = [StateWrite(key=each, record=batch(), holder="r1", expected=None) for each in keys]
    first = store.write_many(fresh)
    assert set(first) == set(keys)
    assert all(held.fence == 1 for held in first.values())
    after = batch(phase=Phase.AFTER, rows=[1, 2, 3])
    later = [StateWrite(key=each, record=after, holder="r1", expected=first[each]) for each in keys]
    second = store.write_many(later)
    assert {to_text(held) for held in second.values()} == {to_text(later[0].new_state)}
    assert store.read([*keys, key]) == second
    assert store.forget(keys[:-1]) == 999
    assert store.read(keys) == {keys[-1]: second[keys[-1]]}


def test_of_many_writes_those_that_lost_are_named_and_the_others_written(store, key):
    """Fresh, later and repeated writes, some of each kind lost."""
    keys = [replace(key, tenant=f"tenant {number}") for number in range(8)]

    def write(number, to, seen, holder="r1"):
        return StateWrite(key=keys[number], record=batch(to=to), holder=holder, expected=seen)

    first = store.write_many([write(number, 1, None) for number in range(1, 7)])
    store.write_many([write(number, 2, first[keys[number]], "heir") for number in (3, 6)])
    repeated = store.write_many([write(4, 3, first[keys[4]])])
    outcomes = store.write_many(
        [
            write(0, 3, None),
            write(1, 3, None),
            write(2, 3, first[keys[2]]),
            write(3, 3, first[keys[3]]),
            write(4, 3, first[keys[4]]),
            write(5, 1, None),
            write(6, 1, None),
            write(7, 3, first[keys[5]]),
        ]
    )
    lost = {keys.index(each) for each in outcomes if isinstance(outcomes[each], FenceError)}
    assert lost == {1, 3, 6, 7}
    assert outcomes[keys[4]] == repeated[keys[4]]
    states = store.read(keys)
    fences = {keys.index(each): state.fence for each, state in states.items()}
    assert fences == {0: 1, 1: 1, 2: 2, 3: 2, 4: 2, 5: 1, 6: 2}
    assert all(states[each] == outcomes[each] for each in keys if keys.index(each) not in lost)
    assert_names(str(outcomes[keys[3]]), "'tenant 3'", key.table_id, "r1", "fence 1")


def test_what_no_store_could_give_back_is_refused_before_anything_is_written(store, key):
    other = replace(key, tenant="other")
    fine = StateWrite(key=other, record=batch(), holder="r1", expected=None)
    for layout in ({"a": {1}}, {"a": float("nan")}, {"a": (1, 2)}, {"a": {1: 2}}):
        with raises_naming(ConfigError, "'acme'", key.table_id, "layout"):
            store.write_many([fine, replace(fine, key=key, record=batch(**layout))])
    with raises_naming(ConfigError, "'other'", key.table_id, "2 times"):
        store.write_many([fine, replace(fine, holder="r2")])
    assert store.read([key, other]) == {}


@pytest.mark.parametrize(
    "parts", [{"tenant": "a\0"}, {"tenant": "\ud800"}, {"job_name": ""}, {"table_id": "a\nb"}]
)
def test_a_key_is_made_of_what_can_be_stored(parts):
    with pytest.raises(ConfigError):
        make_key(**parts)
    with raises_naming(ConfigError, "holder"):
        StateWrite(key=make_key(), record=batch(), holder="", expected=None)


def test_threads_of_one_store_take_each_fence_once(store, key):
    won: list[int] = []

    def contend(holder: str) -> None:
        for _ in range(ROUNDS):
            try:
                seen = store.read([key]).get(key)
                won.append(store.write(key, batch(), holder=holder, expected=seen).fence)
            except FenceError:
                continue

    threads = [threading.Thread(target=contend, args=(f"r{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(won) == list(range(1, len(won) + 1))
    assert store.read([key])[key].fence == len(won)


def contend(wait, number, place, keys) -> list[tuple[str, int, str]]:
    """Read and write all keys repeatedly, at the same time as all others."""
    won: list[tuple[str, int, str]] = []
    holder = f"run-{number}"
    wait()
    store = open_store(*place)
    wait()
    for turn in range(ROUNDS):
        seen = store.read(keys)
        record = batch(turn, turn + 1, by=number)
        outcomes = store.write_many(
            [
                StateWrite(key=key, record=record, holder=holder, expected=seen.get(key))
                for key in keys
            ]
        )
        won += [
            (key.tenant, each.fence, each.holder)
            for key, each in outcomes.items()
            if isinstance(each, StoredState)
        ]
    return won


def test_of_many_processes_exactly_one_wins_each_fence(place):
    if place[0] == "memory":
        pytest.skip("a process has its own memory")
    if place[0] == "sql":
        # The processes also create the tables at the same moment.
        STATES_METADATA.drop_all(open_store(*place).engine)
    keys = [make_key(tenant=f"tenant {number}") for number in range(3)]
    preload = ["iscp_dagster.batchstates.sql", "clickhouse_connect"]
    by_process = at_once(contend, place, keys, preload=preload, processes=PROCESSES)
    written = [each for won in by_process for each in won]
    states = open_store(*place).read(keys)
    for key in keys:
        won = sorted((fence, holder) for name, fence, holder in written if name == key.tenant)
        assert [fence for fence, _ in won] == list(range(1, states[key].fence + 1))
        assert won[-1] == (states[key].fence, states[key].holder)


def test_the_setting_names_a_kind_and_where_it_lives(caplog):
    with raises_naming(ConfigError, "'redis'", "sql", "keepermap"):
        make_state_store("redis")
    for wrong in ("keepermap:", "keepermap:path", "keepermap:/", "keepermap:a:/b", "sql:x"):
        with raises_naming(ConfigError, f"'{wrong}'", "keepermap:database/path"):
            make_state_store(wrong)
        with raises_naming(ConfigError, f"'{wrong}'", "keepermap:database/path"):
            make_opener(wrong, log_url="", endpoint=None)
    with raises_naming(ConfigError, "'sql'", "ISCP_LOG_URL"):
        make_state_store("sql")
    with raises_naming(ConfigError, "'keepermap'", "CLICKHOUSE_URL"):
        make_state_store("keepermap")
    with caplog.at_level(logging.WARNING):
        make_state_store("memory")
    (record,) = caplog.records
    assert_names(record.getMessage(), "memory")


def test_deployments_on_one_keeper_have_states_of_their_own(keeper, key):
    one, other = (
        make_state_store(f"keepermap:{name}/states_{name}", endpoint=keeper.endpoint)
        for name in ("one", "other")
    )
    for store in (one, other):
        store.ensure()
    one.write(key, batch(), holder="r1", expected=None)
    assert (len(one.read([key])), len(other.read([key]))) == (1, 0)
    moved = make_state_store("keepermap:one/states_other", endpoint=keeper.endpoint)
    with raises_naming(SetupError, "'/states_other'"):
        moved.ensure()


def test_a_store_that_does_not_answer_is_unavailable_and_says_what_it_is(tmp_path, key):
    gone = make_state_store("keepermap", endpoint=ClickHouseEndpoint.parse("http://127.0.0.1:9"))
    with raises_naming(UnavailableError, "ClickHouse", "http://127.0.0.1:9"):
        gone.write(key, batch(), holder="r1", expected=None)
    broken = make_state_store("sql", log_url=f"sqlite:///{tmp_path}/none/log.db")
    with raises_naming(UnavailableError, f"sqlite:///{tmp_path}/none/log.db", "ISCP_STATE_STORE"):
        broken.read([key])
