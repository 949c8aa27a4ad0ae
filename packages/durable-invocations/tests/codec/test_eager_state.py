"""Eager state answers what the runtime would."""

from hypothesis import given
from hypothesis import strategies as st

from durable_invocations.journal.state import EagerState
from durable_invocations.protocol.results import EMPTY, Value, make_keys_value

KEYS = st.sampled_from([b"a", b"b", b"c"])
CHANGES = st.one_of(
    st.tuples(st.just("set"), KEYS, st.binary(max_size=2)),
    st.tuples(st.just("clear"), KEYS),
    st.tuples(st.just("clear_all")),
)
STORED = st.dictionaries(KEYS, st.binary(max_size=2))


@given(STORED, st.sets(KEYS), st.lists(CHANGES, max_size=6))
def test_eager_state_is_the_state_that_the_runtime_stores(stored, sent_keys, changes):
    known = {key: value for key, value in stored.items() if key in sent_keys}
    partial = known != stored
    eager = EagerState(known, partial=partial)
    apply = {"set": stored.__setitem__, "clear": lambda key: stored.pop(key, None)}
    for name, *arguments in changes:
        getattr(eager, name)(*arguments)
        apply.get(name, stored.clear)(*arguments)
    for key in (b"a", b"b", b"c"):
        truth = Value(value=stored[key]) if key in stored else EMPTY
        assert eager.get(key) in {truth, None}
        if not partial:
            assert eager.get(key) == truth
    assert eager.keys() in {make_keys_value(sorted(stored)), None}
    if not partial or ("clear_all",) in changes:
        assert eager.keys() == make_keys_value(sorted(stored))


def test_partial_state_does_not_know_a_key_that_the_runtime_did_not_send():
    assert EagerState({b"a": b""}, partial=False).get(b"b") == EMPTY
    eager = EagerState({b"a": b""}, partial=True)
    assert (eager.get(b"a"), eager.get(b"b"), eager.keys()) == (Value(value=b""), None, None)
    eager.clear(b"a")
    assert (eager.get(b"a"), eager.get(b"b")) == (EMPTY, None)
    eager.clear_all()
    assert (eager.get(b"b"), eager.keys()) == (EMPTY, make_keys_value([]))
