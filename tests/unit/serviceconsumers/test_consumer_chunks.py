"""A tenant's changes make the same chunks and keys, however they come."""

import json
import random
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp_dagster.serviceconsumers.chunks import JobIdentity, TenantRange, cut_chunks, format_line
from iscp_dagster.serviceconsumers.sorting import Sorter
from support.outbox.memory_runtime import FakeRuntime, declare_consumer, make_consumer, retriever_of

TENANTS = ("acme", "globex", "initech")
OWNER = JobIdentity(table_id="t", job="booked", registration=1, generation=0)
CHANGES = st.dictionaries(
    st.tuples(st.sampled_from(TENANTS), st.integers(0, 2**63 - 1)),
    st.tuples(st.decimals(0, 10**12, places=2), st.integers(2, 5), st.booleans()),
    max_size=30,
)


def make_changes(**changes):
    fields = {"table": "a.b", "tenant": "acme", "from_": 1, "to": 5, "snapshot": False}
    return TenantRange(**(fields | changes))


def group_by_tenant(runtime):
    """Return the keys and bodies by tenant, in their order."""
    invocations = {}
    for key, body in zip(runtime.invoked, runtime.bodies, strict=True):
        invocations.setdefault(body["tenant"], []).append((key, body))
    return invocations


@settings(max_examples=50)
@given(CHANGES, st.integers(0, 2**32), st.booleans())
def test_any_cut_and_grouping_makes_the_same_chunks_and_keys(changed, seed, snapshot):
    changes = [
        (desk, id_, amount, version, deleted and not snapshot)
        for (desk, id_), (amount, version, deleted) in changed.items()
    ]
    together, apart, dice = FakeRuntime(), FakeRuntime(), random.Random(seed)
    declared = declare_consumer(rows=4)
    retriever = retriever_of(changes, TENANTS, snapshot=snapshot)
    make_consumer(together, declared).consume(retriever)
    for tenant in TENANTS:
        own = [each for each in changes if each[0] == tenant]
        retriever = retriever_of(own, [tenant], snapshot=snapshot, dice=dice)
        make_consumer(apart, declared).consume(retriever)
    assert group_by_tenant(together) == group_by_tenant(apart)
    rows = [row for body in together.bodies for row in body["rows"]]
    assert sorted((row["desk"], int(row["id"])) for row in rows) == sorted(changed)
    assert all(len(body["rows"]) <= 4 for body in together.bodies)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.text(max_size=40)), max_size=40),
    st.integers(1, 7),
    st.integers(1, 400),
)
def test_a_chunk_is_bounded_and_nothing_is_left_out(rows, most_rows, most_bytes):
    lines = sorted(format_line({"x": text}, version, "upsert") for version, text in rows)
    chunks = list(cut_chunks(make_changes(), lines, rows=most_rows, most=most_bytes))
    bodies = [json.loads(each.body) for each in chunks]
    all_rows = [row for body in bodies for row in body["rows"]]
    assert sorted((row["_version"], row["x"]) for row in all_rows) == sorted(rows)
    assert [row["_version"] for row in all_rows] == sorted(version for version, _ in rows)
    assert [each.number for each in chunks] == list(range(len(chunks)))
    assert [each.last for each in chunks] == [False] * (len(chunks) - 1) + [True] * bool(chunks)
    for chunk, body in zip(chunks, bodies, strict=True):
        texts = [json.dumps(r, ensure_ascii=False, separators=(",", ":")) for r in body["rows"]]
        assert chunk.rows == len(texts) <= most_rows
        assert chunk.rows == 1 or sum(len(text.encode()) for text in texts) <= most_bytes


def test_an_empty_snapshot_has_a_chunk_and_an_empty_tail_has_none():
    (chunk,) = cut_chunks(make_changes(snapshot=True), [], rows=5)
    range_ = {"table": "a.b", "tenant": "acme", "from": 1, "to": 5, "snapshot": True}
    assert json.loads(chunk.body) == range_ | {"chunk": 0, "last": True, "rows": []}
    assert list(cut_chunks(make_changes(), [], rows=5)) == []


@pytest.mark.parametrize(
    ("owner", "changes"),
    [
        ({"table_id": "u"}, {}),
        ({"job": "other"}, {}),
        ({"registration": 2}, {}),
        ({"generation": 1}, {}),
        ({}, {"tenant": "globex"}),
        ({}, {"from_": 2}),
        ({}, {"to": 6}),
        ({}, {"snapshot": True}),
    ],
)
def test_a_key_names_job_tenant_and_range(owner, changes):
    lines = [format_line({"x": 1}, 2, "upsert")]
    (chunk,) = cut_chunks(make_changes(), lines, rows=5)
    (other,) = cut_chunks(make_changes(**changes), lines, rows=5)
    assert chunk.compute_key(OWNER) == chunk.compute_key(OWNER)
    assert chunk.compute_key(OWNER) != other.compute_key(replace(OWNER, **owner))


def test_a_key_names_the_chunk_by_number_and_content():
    lines = [format_line({"x": x}, 2, "upsert") for x in (1, 1, 2)]
    keys = [each.compute_key(OWNER) for each in cut_chunks(make_changes(), lines, rows=1)]
    assert len(set(keys)) == 3
    (whole,) = cut_chunks(make_changes(), lines, rows=5)
    assert whole.compute_key(OWNER) not in keys


def test_values_have_the_texts_of_events():
    runtime = FakeRuntime()
    changes = [("acme", 2**60, Decimal("0.10"), 2, False), ("acme", 7, Decimal(1), 3, True)]
    make_consumer(runtime).consume(retriever_of(changes, ["acme"]))
    assert runtime.bodies[0]["rows"] == [
        {"desk": "acme", "id": str(2**60), "amount": "0.10", "_change": "upsert", "_version": 2},
        {"desk": "acme", "id": 7, "_change": "delete", "_version": 3},
    ]


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.sampled_from(TENANTS), st.text(max_size=8)), max_size=60),
    st.integers(0, 40),
)
def test_lines_are_sorted_by_tenant_in_memory_or_on_disk(rows, memory):
    sorter = Sorter(memory=memory)
    lines = [(tenant, format_line({"x": text}, 0, "upsert")) for tenant, text in rows]
    for tenant, line in lines:
        sorter.add(tenant, [line])
    # All are opened before one is read.
    readers = {tenant: sorter.read_sorted(tenant) for tenant in TENANTS}
    for tenant, reader in readers.items():
        assert list(reader) == sorted(line for owner, line in lines if owner == tenant)
    sorter.close()
