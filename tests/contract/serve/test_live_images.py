"""What is selected of a changes index, against the changes that it was written from."""

import pytest

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
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
POSITIONS = {
    "acme": ChangePosition(11, 0),
    "it's\n\\": ChangePosition.from_commit(14),
    "é": ChangePosition.from_commit(9),
}


@pytest.fixture(scope="module")
def index_and_images(clickhouse_url):
    """Return an index in memory and its rows in ClickHouse, where some were written twice."""
    index, table = FakeIndex(), ImageTable(ClickHouseEndpoint.parse(clickhouse_url), "live_images")
    for tenant in TENANTS:
        index.synchronize(tenant, set(range(5)))
        history = index.tenants[tenant]
        table.begin(tenant, history.begin, history.base)
    for number in range(12):
        index.synchronize(TENANTS[number % 3], {number % 5, (number * 7) % 5, 9})
    for tenant in TENANTS:
        table.write(tenant, index.confirmed(tenant))
    table.write("acme", index.confirmed("acme")[:4])
    return index, table.images


def flatten(stamped_changes):
    """Return what both sides must agree on: the index in memory has other timestamps."""
    return [
        (c.tenant, c.operation, c.before, c.after, c.fields, timestamp.version, timestamp.ordinal)
        for c, timestamp in stamped_changes
    ]


def list_rows(page):
    return [change.after for _, (change, _) in page.rows]


def order_by_key(rows):
    return sorted(rows, key=lambda row: (row["tenant"], row["id"]))


def test_changes_are_those_of_the_spans_in_order(index_and_images):
    index, images = index_and_images
    spans = [
        Span(tenant="acme", after=ChangePosition(5, 1), upto=ChangePosition.from_commit(12)),
        Span(tenant="é", after=ChangePosition.from_commit(3), upto=ChangePosition(12, 1)),
        Span(tenant="it's\n\\", after=START, upto=ChangePosition.from_commit(15)),
    ]
    model = index.read_changes(spans, 100)
    changes = flatten(model.stamped_changes)
    assert len(changes) > 10
    for most in (1, 2, 3, 5, len(changes), 100):
        page = images.read_changes(spans, most)
        assert (page.beginnings, page.complete) == (model.beginnings, most == 100)
        assert flatten(page.stamped_changes) == changes[:most]
    ((change, timestamp),) = images.read_changes(spans, 1).stamped_changes
    assert timestamp.nanos == 1_767_225_600 * 10**9 + timestamp.version * 10**9
    assert set(change.row) == {"tenant", "id", "value"}


def test_rows_too_large_for_one_answer_are_read_fewer_at_a_time(index_and_images, monkeypatch):
    index, images = index_and_images
    spans = [Span(tenant="acme", after=ChangePosition(5, 1), upto=ChangePosition.from_commit(12))]
    changes = flatten(index.read_changes(spans, 100).stamped_changes)
    positions = {"acme": ChangePosition.from_commit(12)}
    rows = list_rows(index.read_snapshot(positions, (), 100, EVERYTHING))
    monkeypatch.setattr(module, "IMAGE_LIMITS", QueryLimits(rows=3, bytes=10**6))
    page = images.read_changes(spans, 16)
    assert (flatten(page.stamped_changes), page.complete) == (changes[:1], False)
    page = images.read_snapshot(positions, (), 32)
    assert 1 <= len(page.rows) < len(rows)
    assert page.upto is not None


def test_a_history_begins_where_it_was_marked_also_without_rows(index_and_images):
    index, images = index_and_images
    assert images.read_beginnings([*TENANTS, "unknown"]) == index.read_beginnings(TENANTS)
    assert images.read_beginnings([]) == {}


def test_the_rows_at_the_beginning_come_by_key(index_and_images):
    index, images = index_and_images
    for tenant in TENANTS:
        begin = index.tenants[tenant].begin
        for offset, most in ((0, 9), (0, 2), (2, 2), (4, 2), (5, 2)):
            page = images.read_base(tenant, begin, offset, most)
            model = index.read_base(tenant, begin, offset, most)
            assert flatten(page.stamped_changes) == flatten(model.stamped_changes)
            assert page.complete == model.complete
    assert images.read_base("acme", 99, 0, 9) == ChangePage()


@pytest.mark.parametrize("where", [None, {"value": {"_gt": 20}}, {"id": {"_in": [1, 9]}}])
def test_the_rows_at_positions_are_read_page_by_page(index_and_images, where):
    index, images = index_and_images
    expression = parse_where({column.field: column for column in images.columns}, where)
    model = list_rows(index.read_snapshot(POSITIONS, (), 100, expression))
    rows, key = [], ()
    while key is not None:
        page = images.read_snapshot(POSITIONS, key, 2, expression)
        assert len(page.rows) <= 2
        rows += list_rows(page)
        key = page.upto
    assert rows
    assert rows == order_by_key(model)


def test_thousands_of_tenants_may_each_have_another_position(index_and_images):
    index, images = index_and_images
    others = {f"tenant {number}": ChangePosition(number) for number in range(5_000)}
    rows = list_rows(images.read_snapshot({**others, **POSITIONS}, (), 100))
    assert rows == order_by_key(list_rows(index.read_snapshot(POSITIONS, (), 100, EVERYTHING)))
    assert {row["tenant"] for row in rows} == set(TENANTS)


HOUR = 1_729_989_000
"""Seconds at 00:30 UTC, as the summer of 2024 ended in Berlin: 02:30 there, and then again."""


@pytest.mark.parametrize(
    ("type_", "keys", "answers"),
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
            [f"toDateTime({HOUR + later})" for later in (0, 3600)],
            ["2024-10-27T00:30:00Z", "2024-10-27T01:30:00Z"],
        ),
        (
            "DateTime64(3, 'Europe/Berlin')",
            [f"fromUnixTimestamp64Milli({HOUR + later}001)" for later in (0, 3600)],
            ["2024-10-27T00:30:00.001Z", "2024-10-27T01:30:00.001Z"],
        ),
    ],
)
def test_no_key_is_lost_between_two_pages(clickhouse_url, type_, keys, answers):
    endpoint = ClickHouseEndpoint.parse(clickhouse_url)
    client = endpoint.get_client()
    client.command("CREATE DATABASE IF NOT EXISTS live_keys")
    client.command(
        f"CREATE OR REPLACE TABLE live_keys.t__rows (tenant String, k {type_}, said String, "
        "_change Int8, _image Int8, _fields Array(String), _ordinal Int64, _version Int64, "
        "_timestamp DateTime64(6, 'UTC')) ENGINE = MergeTree ORDER BY (tenant, k)"
    )
    values = ", ".join(f"('acme', {key}, unhex('61ff62'), 0, 1, [], 0, 3, 3)" for key in keys)
    client.command(f"INSERT INTO live_keys.t__rows VALUES {values}")
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
    rows, key = [], ()
    for _ in range(len(keys) + 2):
        page = images.read_snapshot({"acme": ChangePosition.from_commit(3)}, key, 1)
        rows += list_rows(page)
        key = page.upto
        if key is None:
            break
    assert key is None
    assert [row["k"] for row in rows] == answers
    # Bytes that are no UTF-8 would spoil a whole answer.
    assert {row["said"] for row in rows} == {"a\ufffdb"}


def test_the_newest_generation_is_read(clickhouse_url):
    table = ImageTable(ClickHouseEndpoint.parse(clickhouse_url), "live_generations")
    images = table.images
    assert images.find_newest_generation() == 0
    table.create(2)
    assert images.find_newest_generation() == 2
    newest = images.select_generation(2)
    assert newest.read_snapshot({"acme": START}, (), 1, EVERYTHING) == SnapshotPage()
    table.drop()
    assert images.find_newest_generation() is None


def test_one_module_has_the_sql_of_image_rows():
    live = (ROOT / "iscp_dagster" / "serve" / "live").rglob("*.py")
    assert {path.name for path in live if "`_version`" in path.read_text()} == {"images.py"}
