"""Image rows become changes, whichever way they come."""

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.events.changes import ConditionResult, HalfChangeError, pair_images, sort_changes
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.model.declared.images import ChangeKind
from support.errors import raises_naming

AT = datetime(2024, 1, 15, tzinfo=timezone.utc)
MICROS = 1705276800000000


def make_image(change, side, *, version=1, ordinal=0, tenant="acme", key=1, fields=(), **columns):
    return {
        "tenant": tenant,
        "id": key,
        **columns,
        "_change": change,
        "_image": side,
        "_fields": list(fields),
        "_version": version,
        "_ordinal": ordinal,
        "_timestamp": AT,
        "_deleted": change == 3,
    }


def pair(rows, tenant="tenant"):
    return list(pair_images(rows, keys=["id"], tenant=tenant))


def test_each_operation_has_its_images():
    rows = [
        make_image(0, 1, ordinal=0, key=0, v=0),
        make_image(1, 1, ordinal=1, key=1, v=1),
        make_image(2, 0, ordinal=2, key=2, v=1, fields=["v"]),
        make_image(2, 1, ordinal=2, key=2, v=2, fields=["v"]),
        make_image(3, 0, ordinal=3, key=3, v=3),
    ]
    changes = [change for change, _ in pair(rows)]
    assert [change.operation.name for change in changes] == ["BASE", "INSERT", "UPDATE", "DELETE"]
    assert [change.key for change in changes] == [f'["acme","{number}"]' for number in range(4)]
    assert [change.before and change.before["v"] for change in changes] == [None, None, 1, 3]
    assert [change.after and change.after["v"] for change in changes] == [0, 1, 2, None]


def test_the_timestamp_stands_beside_the_row_and_never_in_it():
    ((change, timestamp),) = pair([make_image(1, 1, version=4, ordinal=2, v=1)])
    assert timestamp == SourceTimestamp(nanos=0, version=4, ordinal=2)
    assert timestamp.nanos == MICROS * 1_000
    assert dict(change.after) == {"tenant": "acme", "id": 1, "v": 1}
    same = {**make_image(1, 1, version=4, ordinal=2, v=1), "_timestamp": MICROS}
    assert pair([same])[0][1].nanos == timestamp.nanos


def test_a_change_has_the_fields_and_the_results_of_its_images():
    before = make_image(2, 0, v=1, fields=["v"]) | {"_match": None, "_unmatch": True}
    after = make_image(2, 1, v=2, fields=["v"]) | {"_match": True, "_unmatch": None}
    ((change, _),) = pair([before, after])
    assert change.fields == ("v",)
    assert change.result_before == ConditionResult(unmatch=True)
    assert change.result_after == ConditionResult(match=True)
    assert set(change.before) == {"tenant", "id", "v"}


def test_a_table_without_tenants_has_none_in_its_changes():
    ((change, _),) = pair([make_image(1, 1, tenant="ignored")], tenant=None)
    assert (change.tenant, change.key) == (None, "1")


def test_the_row_of_a_change_is_the_one_before_if_it_left():
    (entered, _), (left, _) = pair([make_image(1, 1, v=1), make_image(3, 0, version=2, v=2)])
    assert (entered.row["v"], left.row["v"]) == (1, 2)


STORIES = st.lists(
    st.tuples(
        st.sampled_from(["acme", "globex"]),
        st.integers(1, 3),
        st.integers(0, 3),
        st.sampled_from([1, 2, 3]),
    ),
    unique_by=lambda each: each[:3],
    max_size=8,
)


@given(STORIES, st.randoms(use_true_random=False))
def test_images_may_come_apart_and_in_any_order(places, random):
    rows = []
    for tenant, version, ordinal, change in places:
        sides = {1: [1], 2: [0, 1], 3: [0]}[change]
        place = {"tenant": tenant, "version": version, "ordinal": ordinal, "key": ordinal}
        rows += [make_image(change, side, **place, v=side) for side in sides]

    def pair_by_place():
        changes = sort_changes(pair(rows))
        by_place = {(change.tenant, at.version, at.ordinal): change for change, at in changes}
        return by_place, [at for _, at in changes]

    expected = pair_by_place()
    random.shuffle(rows)
    assert pair_by_place() == expected


@pytest.mark.parametrize(("side", "missing"), [(0, "after"), (1, "before")])
def test_half_an_update_is_no_change(side, missing):
    with raises_naming(HalfChangeError, missing, "commit 5", '["acme","1"]') as caught:
        pair([make_image(2, side, version=5)])
    assert not caught.value.permanent


def test_an_image_that_comes_twice_is_not_taken_for_the_other():
    with pytest.raises(HalfChangeError):
        pair([make_image(2, 1), make_image(2, 1), make_image(2, 0)])


def test_the_row_that_begins_a_history_is_no_change():
    assert pair([make_image(-1, 1)]) == []


def test_the_operations_are_numbered_as_image_rows_number_them():
    names = {int(kind): kind.name for kind in ChangeKind}
    assert names == {-1: "BEGIN", 0: "BASE", 1: "INSERT", 2: "UPDATE", 3: "DELETE"}
