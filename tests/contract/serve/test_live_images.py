"""What is selected of a changes index, against the changes that it was written from."""

import pytest

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.types.type_parser import parse_type
from iscp_dagster.serve.columns import build_column
from iscp_dagster.serve.live import images as module
from iscp_dagster.serve.live.images import ChangePage, ImageReader, SnapshotPage, Span
from iscp_dagster.serve.live.positions import START, ChangePosition
from iscp_dagster.serve.rows import QueryLimits
from iscp_dagster.serve.where import EVERYTHING, parse_where
from support.live.changes_index import ImageTable
from support.live.view_history import FakeIndex
from support.paths import ROOT

TENANTS = ("acme", "it's\n\\", "é")


@pytest.fixture(scope="module")
def both(clickhouse_url):
    """Return an index in memory and its rows in ClickHouse, where some were written twice."""
    index, table = FakeIndex(), ImageTable(Endpoint.parse(clickhouse_url), "live_images")
    for tenant in TENANTS:
        index.synchronize(tenant, set(range(5)))
        its = index.tenants[tenant]
        table.begin(tenant, its.begin, its.base)
    for number in range(12):
        index.synchronize(TENANTS[number % 3], {number % 5, (number * 7) % 5, 9})
    for tenant in TENANTS:
        table.write(tenant, index.confirmed(tenant))
    table.write("acme", index.confirmed("acme")[:4])
    return index, table.images


def told(found):
    return [(c.tenant, c.operation, c.before, c.after, c.fields, t.version, t.ordinal)
            for c, t in found]  # fmt: skip


def test_changes_are_those_of_the_spans_in_order(both):
    index, images = both
    spans = [
        Span(tenant="acme", after=ChangePosition(5, 1), upto=ChangePosition.from_commit(12)),
        Span(tenant="é", after=ChangePosition.from_commit(3), upto=ChangePosition(12, 1)),
        Span(tenant="it's\n\\", after=START, upto=ChangePosition.from_commit(15)),
    ]
    everything = index.read_changes(spans, 100)
    whole = told(everything.timed_changes)
    assert len(whole) > 10
    for most in (1, 2, 3, 5, len(whole), 100):
        found = images.read_changes(spans, most)
        assert (found.beginnings, found.complete) == (everything.beginnings, most == 100)
        assert told(found.timed_changes) == whole[:most]
    ((change, timestamp),) = images.read_changes(spans, 1).timed_changes
    assert timestamp.nanos == 1_767_225_600 * 10**9 + timestamp.version * 10**9
    assert set(change.row) == {"tenant", "id", "value"}


def test_rows_too_large_for_one_answer_are_read_fewer_at_a_time(both, monkeypatch):
    index, images = both
    spans = [Span(tenant="acme", after=ChangePosition(5, 1), upto=ChangePosition.from_commit(12))]
    whole = told(index.read_changes(spans, 100).timed_changes)
    at = {"acme": ChangePosition.from_commit(12)}
    rows = len(index.read_snapshot(at, (), 100, EVERYTHING).rows)
    monkeypatch.setattr(module, "IMAGE_LIMITS", QueryLimits(rows=3, bytes=10**6))
    found = images.read_changes(spans, 16)
    assert (told(found.timed_changes), found.complete) == (whole[:1], False)
    page = images.read_snapshot(at, (), 32)
    assert 1 <= len(page.rows) < rows
    assert page.upto is not None


def test_a_history_begins_where_it_was_marked_also_without_rows(both):
    index, images = both
    assert images.read_beginnings([*TENANTS, "unknown"]) == index.read_beginnings(TENANTS)
    assert images.read_beginnings([]) == {}


def test_the_rows_that_it_begins_with_come_by_key(both):
    index, images = both
    for tenant in TENANTS:
        begin = index.tenants[tenant].begin
        for told_, most in ((0, 9), (0, 2), (2, 2), (4, 2), (5, 2)):
            found, model = (each.read_base(tenant, begin, told_, most) for each in (images, index))
            assert (told(found.timed_changes), found.complete) == (
                told(model.timed_changes),
                model.complete,
            )
    assert images.read_base("acme", 99, 0, 9) == ChangePage()


@pytest.mark.parametrize("where", [None, {"value": {"_gt": 20}}, {"id": {"_in": [1, 9]}}])
def test_the_rows_that_stand_at_positions_are_read_page_by_page(both, where):
    index, images = both
    given = {each.field: each for each in images.columns}
    expression = parse_where(given, where)
    at = {
        "acme": ChangePosition(11, 0),
        "it's\n\\": ChangePosition.from_commit(14),
        "é": ChangePosition.from_commit(9),
    }
    whole = [stamped[0].after for _, stamped in index.read_snapshot(at, (), 100, expression).rows]
    found, row = [], ()
    while row is not None:
        page = images.read_snapshot(at, row, 2, expression)
        assert len(page.rows) <= 2
        found += [stamped[0].after for _, stamped in page.rows]
        row = page.upto
    assert found == sorted(whole, key=lambda each: (each["tenant"], each["id"]))
    assert found


def test_thousands_of_tenants_may_each_be_elsewhere(both):
    index, images = both
    elsewhere = {f"tenant {number}": ChangePosition(number) for number in range(5_000)}
    at = {
        **elsewhere,
        "acme": ChangePosition(11, 0),
        "it's\n\\": ChangePosition.from_commit(14),
        "é": ChangePosition(9),
    }
    found = images.read_snapshot(at, (), 100).rows
    model = index.read_snapshot({each: at[each] for each in TENANTS}, (), 100, EVERYTHING).rows
    rows = [[stamped[0].after for _, stamped in each] for each in (found, model)]
    assert rows[0] == sorted(rows[1], key=lambda each: (each["tenant"], each["id"]))
    assert {each["tenant"] for each in rows[0]} == set(TENANTS)


HOUR = 1_729_989_000
"""Seconds at 00:30 UTC, as the summer of 2024 ended in Berlin: 02:30 there, and then again."""


@pytest.mark.parametrize(
    ("type_", "keys", "shown"),
    [
        (
            "String",
            ["unhex('00')", "unhex('80')", "unhex('fe')", "unhex('ff')", "unhex('ffff')"],
            ["AA==", "gA==", "/g==", "/w==", "//8="],
        ),
        ("Float64", ["-inf", "0.5", "inf", "nan"], ["-Infinity", 0.5, "Infinity", "NaN"]),
        ("BFloat16", ["-1", "0.5", "nan"], [-1, 0.5, "NaN"]),
        (
            "DateTime('Europe/Berlin')",
            [f"toDateTime({HOUR + each})" for each in (0, 3600)],
            ["2024-10-27T00:30:00Z", "2024-10-27T01:30:00Z"],
        ),
        (
            "DateTime64(3, 'Europe/Berlin')",
            [f"fromUnixTimestamp64Milli({HOUR + each}001)" for each in (0, 3600)],
            ["2024-10-27T00:30:00.001Z", "2024-10-27T01:30:00.001Z"],
        ),
    ],
)
def test_no_key_is_lost_between_two_pages(clickhouse_url, type_, keys, shown):
    endpoint = Endpoint.parse(clickhouse_url)
    endpoint.get_client().command("CREATE DATABASE IF NOT EXISTS live_keys")
    endpoint.get_client().command(
        f"CREATE OR REPLACE TABLE live_keys.t__rows (tenant String, k {type_}, said String, "
        "_change Int8, _image Int8, _fields Array(String), _ordinal Int64, _version Int64, "
        "_timestamp DateTime64(6, 'UTC')) ENGINE = MergeTree ORDER BY (tenant, k)"
    )
    rows = ", ".join(f"('acme', {key}, unhex('61ff62'), 0, 1, [], 0, 3, 3)" for key in keys)
    endpoint.get_client().command(f"INSERT INTO live_keys.t__rows VALUES {rows}")
    images = ImageReader(
        endpoint=endpoint,
        database="live_keys",
        view="t",
        columns=[
            build_column("k", parse_type(type_), binary=type_ == "String"),
            build_column("said", parse_type("String")),
        ],
        keys=["k"],
        types={"tenant": "String", "k": type_},
        tenant="tenant",
    )
    found, row = [], ()
    for _ in range(len(keys) + 2):
        page = images.read_snapshot({"acme": ChangePosition.from_commit(3)}, row or (), 1)
        found += [stamped[0].after for _, stamped in page.rows]
        row = page.upto
        if row is None:
            break
    assert row is None
    assert [each["k"] for each in found] == shown
    # Bytes that are no UTF-8 would spoil a whole answer.
    assert {each["said"] for each in found} == {"a\ufffdb"}


def test_the_newest_generation_is_read(clickhouse_url):
    table = ImageTable(Endpoint.parse(clickhouse_url), "live_generations")
    images = table.images
    assert images.find_newest_generation() == 0
    table.create(2)
    assert images.find_newest_generation() == 2
    assert (
        images.select_generation(2).read_snapshot({"acme": START}, (), 1, EVERYTHING)
        == SnapshotPage()
    )
    table.drop()
    assert images.find_newest_generation() is None


def test_no_other_module_selects_image_rows():
    """The SQL of the table's columns is in one place."""
    live = (ROOT / "iscp_dagster" / "serve" / "live").rglob("*.py")
    assert {each.name for each in live if "`_version`" in each.read_text()} == {"images.py"}
