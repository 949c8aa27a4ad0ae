"""Every store of handled events keeps one contract."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier, Event

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from idempotent_receiver import (
    BeingHandledError,
    ClaimLostError,
    Deduplicator,
    MemoryStore,
    SqlStore,
)
from idempotent_receiver.store import ClaimStatus

MINE, HELD, DONE = ClaimStatus.MINE, ClaimStatus.HELD, ClaimStatus.DONE
WEEK = timedelta(days=7).total_seconds()


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgresql"])
def engine(request, tmp_path_factory):
    """Return a database's engine; None: no database."""
    if request.param == "memory":
        yield None
        return
    url = f"sqlite:///{tmp_path_factory.mktemp('dedup')}/handled.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres")
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def store(engine, clock):
    if engine is None:
        yield MemoryStore(clock=clock)
        return
    store = SqlStore(engine, "handled", clock=clock)
    store.ensure()
    store.ensure()
    yield store
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE handled"))


def test_a_claim_is_done_or_released(store):
    assert store.claim("e", "a", 60) is MINE
    assert store.claim("e", "b", 60) is HELD
    store.release("e", "b")
    assert store.claim("e", "b", 60) is HELD
    store.release("e", "a")
    assert store.claim("e", "b", 60) is MINE
    store.complete("e", "b")
    assert store.claim("e", "a", 60) is DONE
    store.release("e", "b")
    assert store.claim("e", "a", 60) is DONE


def test_a_claim_runs_out_and_its_holder_cannot_complete_it(store, clock):
    assert store.claim("e", "a", 60) is MINE
    clock.now += 61
    assert store.claim("e", "b", 60) is MINE
    with pytest.raises(ClaimLostError, match=r"\be\b"):
        store.complete("e", "a")
    store.complete("e", "b")
    with pytest.raises(ClaimLostError):
        store.complete("e", "b")


def test_events_older_than_the_window_are_forgotten(store, clock):
    assert store.claim("old", "a", 60) is MINE
    store.complete("old", "a")
    clock.now += 10
    assert store.claim("new", "a", 60) is MINE
    store.complete("new", "a")
    clock.now += WEEK - 5
    assert store.forget(WEEK) == 1
    assert store.claim("old", "b", 60) is MINE
    assert store.claim("new", "b", 60) is DONE


def test_concurrent_duplicates_wait_for_the_first_and_are_duplicates(store):
    deduplicator, together, handled = Deduplicator(store), Barrier(4), []

    def deliver(event):
        together.wait(timeout=20)
        with deduplicator.claim(event) as claim:
            if not claim.duplicate:
                handled.append(event)
        return claim.duplicate

    with ThreadPoolExecutor(4) as pool:
        duplicates = [list(pool.map(deliver, [event] * 4)) for event in ("e1", "e2")]
    assert [sorted(answers) for answers in duplicates] == [[False, True, True, True]] * 2
    assert handled == ["e1", "e2"]


def test_a_duplicate_that_waits_handles_the_event_that_the_first_failed_to_handle(store):
    deduplicator, claimed, fail = Deduplicator(store), Event(), Event()

    def first():
        with deduplicator.claim("e"):
            claimed.set()
            assert fail.wait(20)
            raise KeyError

    def second():
        assert claimed.wait(20)
        assert store.claim("e", "look", 60) is HELD
        fail.set()
        with deduplicator.claim("e") as claim:
            return claim.duplicate

    with ThreadPoolExecutor(2) as pool:
        failed, then = pool.submit(first), pool.submit(second)
        assert isinstance(failed.exception(20), KeyError)
        assert then.result(20) is False
    assert store.claim("e", "late", 60) is DONE


def test_a_duplicate_waits_no_longer_than_it_may(store):
    deduplicator = Deduplicator(store, wait=0.05)
    with deduplicator.claim("e"), pytest.raises(BeingHandledError, match=r"\be\b.*\b0\.05 s\b"):
        deduplicator.claim("e")


def test_a_receivers_own_transaction_records_the_event_or_undoes_both(store, engine, clock):
    if engine is None:
        pytest.skip("memory has no transactions")
    deduplicator = Deduplicator(store, lease=60)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE effects (event VARCHAR(9))"))

    def deliver(*, fail=False, slow=False):
        with deduplicator.claim("e") as claim:
            if claim.duplicate:
                return
            if slow:
                clock.now += 61
                deliver()
            with engine.begin() as connection:
                connection.execute(sa.text("INSERT INTO effects VALUES ('e')"))
                claim.complete(connection=connection)
                if fail:
                    raise KeyError

    def effects():
        with engine.connect() as connection:
            return connection.execute(sa.text("SELECT count(*) FROM effects")).scalar()

    try:
        with pytest.raises(KeyError):
            deliver(fail=True)
        assert effects() == 0
        with pytest.raises(ClaimLostError):
            deliver(slow=True)
        deliver()
        assert effects() == 1
    finally:
        with engine.begin() as connection:
            connection.execute(sa.text("DROP TABLE effects"))


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["claim", "complete", "release", "pass", "forget"]),
        st.sampled_from("ef"),
        st.sampled_from("abc"),
    ),
    max_size=15,
)


class Model:
    """One entry an event: its holder, when it was written, and when the claim runs out."""

    def __init__(self, clock):
        self.clock, self.held = clock, {}

    def owns(self, event, holder):
        kept = self.held.get(event)
        return kept is not None and kept[0] == holder and kept[2] is not None

    def claim(self, event, holder):
        kept = self.held.get(event)
        if kept is not None and (kept[2] is None or kept[2] >= self.clock.now):
            return DONE if kept[2] is None else HELD
        self.held[event] = (holder, self.clock.now, self.clock.now + 60)
        return MINE

    def complete(self, event, holder):
        if not self.owns(event, holder):
            return ClaimLostError
        self.held[event] = (holder, self.clock.now, None)
        return None

    def release(self, event, holder):
        if self.owns(event, holder):
            del self.held[event]

    def forget(self):
        old = [event for event, kept in self.held.items() if kept[1] < self.clock.now - 100]
        for event in old:
            del self.held[event]
        return len(old)


def apply(store, operation, event, holder):
    """The result of an operation, or the class of its error."""
    if operation == "claim":
        return store.claim(event, holder, 60)
    if operation == "forget":
        return store.forget(100)
    try:
        return getattr(store, operation)(event, holder)
    except ClaimLostError:
        return ClaimLostError


@pytest.mark.parametrize("url", [None, "sqlite://"])
@settings(max_examples=40)
@given(operations=OPERATIONS)
def test_stores_agree_with_a_model(new_clock, url, operations):
    clock = new_clock()
    store, model = MemoryStore(clock=clock), Model(clock)
    if url is not None:
        store = SqlStore(sa.create_engine(url, poolclass=sa.pool.StaticPool), clock=clock)
        store.ensure()
    for name, event, holder in operations:
        if name == "pass":
            clock.now += 45
            continue
        expected = model.forget() if name == "forget" else getattr(model, name)(event, holder)
        assert apply(store, name, event, holder) is expected
    if url is not None:
        store._engine.dispose()
