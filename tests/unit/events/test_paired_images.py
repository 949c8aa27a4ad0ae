"""Image rows become changes, whichever way they come."""

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.events.changes import ConditionResult, HalfChangeError, pair_images, sort_changes
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.model.declared.images import ChangeKind

AT = datetime(2024, 1, 15, tzinfo=timezone.utc)
MICROS = 1705276800000000


def image(change, side, *, version=1, ordinal=0, tenant="acme", key=1, fields=(), **columns):
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


def paired(rows, tenant="tenant"):
    return list(pair_images(rows, keys=["id"], tenant=tenant))


def test_each_operation_has_its_images():
    rows = [
        image(0, 1, ordinal=0, key=0, v=0),
        image(1, 1, ordinal=1, key=1, v=1),
        image(2, 0, ordinal=2, key=2, v=1, fields=["v"]),
        image(2, 1, ordinal=2, key=2, v=2, fields=["v"]),
        image(3, 0, ordinal=3, key=3, v=3),
    ]
    rest = [
        (
            each.operation.name,
            each.key,
            each.before and each.before["v"],
            each.after and each.after["v"],
        )
        for each, _ in paired(rows)
    ]
    assert rest == [
        ("BASE", '["acme","0"]', None, 0),
        ("INSERT", '["acme","1"]', None, 1),
        ("UPDATE", '["acme","2"]', 1, 2),
        ("DELETE", '["acme","3"]', 3, None),
    ]


def test_the_timestamp_stands_beside_the_row_and_never_in_it():
    ((change, timestamp),) = paired([image(1, 1, version=4, ordinal=2, v=1)])
    assert timestamp == SourceTimestamp(nanos=0, version=4, ordinal=2)
    assert timestamp.nanos == MICROS * 1_000
    assert dict(change.after) == {"tenant": "acme", "id": 1, "v": 1}
    same = {**image(1, 1, version=4, ordinal=2, v=1), "_timestamp": MICROS}
    assert paired([same])[0][1].nanos == timestamp.nanos


def test_fields_and_truths_are_those_of_the_images():
    rows = [
        image(2, 0, v=1, fields=["v"]) | {"_match": None, "_unmatch": True},
        image(2, 1, v=2, fields=["v"]) | {"_match": True, "_unmatch": None},
    ]
    ((change, _),) = paired(rows)
    assert change.fields == ("v",)
    assert (change.result_before, change.result_after) == (
        ConditionResult(unmatch=True),
        ConditionResult(match=True),
    )
    assert set(change.before) == {"tenant", "id", "v"}


def test_a_table_without_tenants_has_none_in_its_changes():
    ((change, _),) = paired([image(1, 1, tenant="ignored")], tenant=None)
    assert (change.tenant, change.key) == (None, "1")


def test_the_row_of_a_change_is_the_one_before_if_it_left():
    (entered, _), (left, _) = paired([image(1, 1, v=1), image(3, 0, version=2, v=2)])
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
        rows += [
            image(
                change, side, tenant=tenant, version=version, ordinal=ordinal, key=ordinal, v=side
            )
            for side in sides
        ]
    expected = sort_changes(paired(rows))
    random.shuffle(rows)
    shuffled = paired(rows)

    def orderly(changes):
        return [at for _, at in sort_changes(changes)]

    assert orderly(shuffled) == orderly(expected)
    by_place = {(c.tenant, at.version, at.ordinal): c for c, at in expected}
    assert {(c.tenant, at.version, at.ordinal): c for c, at in shuffled} == by_place


@pytest.mark.parametrize(("side", "lacking"), [(0, "after"), (1, "before")])
def test_half_an_update_is_no_change(side, lacking):
    with pytest.raises(
        HalfChangeError, match=rf"image {lacking} the update of .*commit 5"
    ) as raised:
        paired([image(2, side, version=5)])
    assert not raised.value.permanent


def test_an_image_that_comes_twice_is_not_taken_for_the_other():
    with pytest.raises(HalfChangeError):
        paired([image(2, 1), image(2, 1), image(2, 0)])


def test_the_row_that_begins_a_history_is_no_change():
    assert paired([image(-1, 1)]) == []


def test_the_operations_are_numbered_as_image_rows_number_them():
    assert [(each.name, int(each)) for each in ChangeKind] == [
        ("BEGIN", -1),
        ("BASE", 0),
        ("INSERT", 1),
        ("UPDATE", 2),
        ("DELETE", 3),
    ]
