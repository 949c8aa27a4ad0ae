"""A tenant's changes make the same chunks and keys, however they come."""

import json
import random
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp_dagster import ServiceConsumer, SourceTable
from iscp_dagster.serviceconsumers.chunks import JobIdentity, TenantChanges, cut_chunks, format_line
from iscp_dagster.serviceconsumers.consumer import InvokingConsumer
from iscp_dagster.serviceconsumers.sorting import Sorter
from support.outbox.memory_runtime import Runtime, retriever_of

TENANTS = ("acme", "globex", "initech")
OWNER = JobIdentity(table_id="t", job="booked", registration=1, generation=0)
CHANGES = st.dictionaries(
    st.tuples(st.sampled_from(TENANTS), st.integers(0, 2**63 - 1)),
    st.tuples(st.decimals(0, 10**12, places=2), st.integers(2, 5), st.booleans()),
    max_size=30,
)


def part(**changes):
    given_ = {"table": "a.b", "tenant": "acme", "from_": 1, "to": 5, "snapshot": False}
    return TenantChanges(**(given_ | changes))


def consumer(runtime, **options):
    given_ = {"handler": "Trades/booked", "name": "booked", "rows": 4} | options
    declared = ServiceConsumer("http://127.0.0.1:9080", **given_)
    source = SourceTable("shop.trades", key="id", tenant="desk", services=[declared])
    return InvokingConsumer(
        source=source,
        declared=declared,
        table_id="t",
        generation=0,
        services=runtime,
        lost=lambda _: None,
    )


def by_tenant(runtime):
    """Return the keys and bodies by tenant, in their order."""
    found = {}
    for key, body in zip(runtime.invoked, runtime.bodies, strict=True):
        found.setdefault(body["tenant"], []).append((key, body))
    return found


@settings(max_examples=50)
@given(CHANGES, st.integers(0, 2**32), st.booleans())
def test_any_cut_and_grouping_makes_the_same_chunks_and_keys(changed, seed, snapshot):
    changes = [
        (desk, id_, amount, version, gone and not snapshot)
        for (desk, id_), (amount, version, gone) in changed.items()
    ]
    together, apart, dice = Runtime(), Runtime(), random.Random(seed)
    consumer(together).consume(retriever_of(changes, TENANTS, snapshot=snapshot))
    for tenant in TENANTS:
        mine = [each for each in changes if each[0] == tenant]
        consumer(apart).consume(retriever_of(mine, [tenant], snapshot=snapshot, dice=dice))
    assert by_tenant(together) == by_tenant(apart)
    told = [row for body in together.bodies for row in body["rows"]]
    assert sorted((row["desk"], int(row["id"])) for row in told) == sorted(changed)
    assert all(len(body["rows"]) <= 4 for body in together.bodies)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.text(max_size=40)), max_size=40),
    st.integers(1, 7),
    st.integers(1, 400),
)
def test_a_chunk_is_bounded_and_nothing_is_left_out(rows, most_rows, most_bytes):
    lines = sorted(format_line({"x": text}, version, "upsert") for version, text in rows)
    found = list(cut_chunks(part(), lines, rows=most_rows, most=most_bytes))
    told = [row for each in found for row in json.loads(each.body)["rows"]]
    assert sorted((row["_version"], row["x"]) for row in told) == sorted(rows)
    assert [row["_version"] for row in told] == sorted(version for version, _ in rows)
    assert [each.number for each in found] == list(range(len(found)))
    assert [each.last for each in found] == [False] * (len(found) - 1) + [True] * bool(found)
    for each in found:
        rows_ = json.loads(each.body)["rows"]
        texts = [json.dumps(r, ensure_ascii=False, separators=(",", ":")) for r in rows_]
        assert each.rows == len(rows_) <= most_rows
        assert each.rows == 1 or sum(len(text.encode()) for text in texts) <= most_bytes


def test_an_empty_snapshot_is_told_and_an_empty_tail_is_not():
    (only,) = cut_chunks(part(snapshot=True), [], rows=5)
    assert json.loads(only.body) == {
        "table": "a.b",
        "tenant": "acme",
        "from": 1,
        "to": 5,
        "snapshot": True,
        "chunk": 0,
        "last": True,
        "rows": [],
    }
    assert list(cut_chunks(part(), [], rows=5)) == []


@pytest.mark.parametrize(
    ("changed", "of"),
    [
        ({"table_id": "u"}, "owner"),
        ({"job": "other"}, "owner"),
        ({"registration": 2}, "owner"),
        ({"generation": 1}, "owner"),
        ({"tenant": "globex"}, "part"),
        ({"from_": 2}, "part"),
        ({"to": 6}, "part"),
        ({"snapshot": True}, "part"),
    ],
)
def test_a_key_names_job_tenant_and_range(changed, of):
    lines = [format_line({"x": 1}, 2, "upsert")]
    (here,) = cut_chunks(part(), lines, rows=5)
    (there,) = cut_chunks(part(**(changed if of == "part" else {})), lines, rows=5)
    owner = JobIdentity(**(OWNER.__dict__ | (changed if of == "owner" else {})))
    assert here.compute_key(OWNER) == here.compute_key(OWNER) != there.compute_key(owner)


def test_a_key_names_the_chunk_by_number_and_content():
    lines = [format_line({"x": x}, 2, "upsert") for x in (1, 1, 2)]
    cut = [each.compute_key(OWNER) for each in cut_chunks(part(), lines, rows=1)]
    assert len(set(cut)) == 3
    (whole,) = cut_chunks(part(), lines, rows=5)
    assert whole.compute_key(OWNER) not in cut


def test_values_have_the_texts_of_events():
    runtime = Runtime()
    changes = [("acme", 2**60, Decimal("0.10"), 2, False), ("acme", 7, Decimal(1), 3, True)]
    consumer(runtime).consume(retriever_of(changes, ["acme"]))
    assert runtime.bodies[0]["rows"] == [
        {"desk": "acme", "id": str(2**60), "amount": "0.10", "_change": "upsert", "_version": 2},
        {"desk": "acme", "id": 7, "_change": "delete", "_version": 3},
    ]


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.sampled_from(TENANTS), st.text(max_size=8)), max_size=60),
    st.integers(0, 40),
)
def test_lines_are_sorted_by_tenant_in_memory_or_on_disk(given_, memory):
    sorter = Sorter(memory=memory)
    lines = [(tenant, format_line({"x": text}, 0, "upsert")) for tenant, text in given_]
    for tenant, each in lines:
        sorter.add(tenant, [each])
    read = {tenant: sorter.read_sorted(tenant) for tenant in TENANTS}
    for tenant in TENANTS:
        assert list(read[tenant]) == sorted(each for whose, each in lines if whose == tenant)
    sorter.close()
