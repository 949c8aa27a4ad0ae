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
def test_what_is_known_is_what_the_runtime_stores(stored, told, changes):
    known = {key: value for key, value in stored.items() if key in told}
    partial = known != stored
    eager = EagerState(known, partial=partial)
    for name, *given_to in changes:
        getattr(eager, name)(*given_to)
        {"set": stored.__setitem__, "clear": lambda key: stored.pop(key, None)}.get(
            name, stored.clear
        )(*given_to)
    for key in (b"a", b"b", b"c"):
        truth = Value(value=stored[key]) if key in stored else EMPTY
        assert eager.get(key) in {truth, None}
        if not partial:
            assert eager.get(key) == truth
    assert eager.keys() in {make_keys_value(sorted(stored)), None}
    if not partial or ("clear_all",) in changes:
        assert eager.keys() == make_keys_value(sorted(stored))


def test_a_key_that_is_not_told_is_asked_for_if_the_state_is_partial():
    assert EagerState({b"a": b""}, partial=True).get(b"b") is None
    assert EagerState({b"a": b""}, partial=True).keys() is None
    assert EagerState({b"a": b""}, partial=True).get(b"a") == Value(value=b"")
    assert EagerState({b"a": b""}, partial=False).get(b"b") == EMPTY
    cleared = EagerState({b"a": b""}, partial=True)
    cleared.clear(b"a")
    assert (cleared.get(b"a"), cleared.get(b"b")) == (EMPTY, None)
    cleared.clear_all()
    assert (cleared.get(b"b"), cleared.keys()) == (EMPTY, make_keys_value([]))
