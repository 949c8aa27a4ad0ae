"""Every cell of docs/types.md on the real engine: held to the last bit, or refused by name."""

from __future__ import annotations

import itertools
import struct

import pyarrow as pa
import pytest
from cells import CASES, LONG, STRING

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.clickhouse.cells import CELLS, cell_of, family
from iscp_dagster.clickhouse.ddl import SYSTEM_COLUMNS, IndexTable
from iscp_dagster.clickhouse.endpoint import Endpoint
from iscp_dagster.clickhouse.indexes import IndexStore
from iscp_dagster.clickhouse.stored import OPEN
from iscp_dagster.clickhouse.targets import Target
from iscp_dagster.clickhouse.typetext import GEO, parsed
from iscp_dagster.clickhouse.wire import restored, selected
from iscp_dagster.clickhouse.writer import Writer
from iscp_dagster.core.errors import SchemaError
from iscp_dagster.core.schema import Array, DeltaField, Map, Struct
from iscp_dagster.lake.filescan import arrow_type

NUMBERS = itertools.count()
ROOTS = {"long": (1, 2), "string": ("a", "b")}


@pytest.fixture(scope="module")
def endpoint(clickhouse_url):
    return Endpoint.parse(clickhouse_url)


def arrow(type_):
    """The Arrow type in which Spark hands over a column of this type."""
    if isinstance(type_, Struct):
        return pa.struct([(f.name, arrow(f.type)) for f in type_.fields])
    if isinstance(type_, Map):
        return pa.map_(arrow(type_.key), arrow(type_.value))
    if isinstance(type_, Array):
        return pa.list_(arrow(type_.element))
    return pa.string() if str(type_) == "variant" else arrow_type(type_)


def array(values, type_):
    """Texts may be bytes, which are not UTF-8 then."""
    if arrow(type_) == pa.string():
        encoded = [v.encode("utf-8") if isinstance(v, str) else v for v in values]
        return pa.array(encoded, pa.binary()).view(pa.string())
    return pa.array(values, arrow(type_))


def store_of(endpoint, cases, **changes):
    fields = [
        DeltaField(name="id", type=LONG),
        *(DeltaField(name=f"c{n}", type=c.source) for n, c in enumerate(cases)),
    ]
    types = {f"c{n}": c.asked for n, c in enumerate(cases) if c.asked}
    source = SourceTable(f"types.t{next(NUMBERS)}", key="id")
    store = IndexStore(
        endpoint=endpoint,
        shape=IndexTable(source=source, index=Mirror(types=types), fields=fields),
    )
    store.ensure()
    store.ensure_views()
    return store


def rows_of(cases, values):
    """Row by row what `values` has of each column; shorter ones begin anew."""
    count = max(map(len, values))
    table = pa.table({"id": pa.array(range(count), pa.int64())})
    for n, (case, column) in enumerate(zip(cases, values, strict=True)):
        filled = list(itertools.islice(itertools.cycle(column), count))
        table = table.append_column(f"c{n}", array(filled, case.source))
    return table


def write(store, table, deleted=False):
    system = (
        pa.array([1] * table.num_rows),
        pa.array([0] * table.num_rows),
        pa.array([deleted] * table.num_rows),
    )
    for name, values in zip(SYSTEM_COLUMNS, system, strict=True):
        table = table.append_column(name, values)
    shape = store.shape
    target = Target(
        name="types/mirror",
        database=shape.database,
        table=shape.rows,
        columns=shape.columns,
        keys=("id",),
        identity={"id": "Int64"},
        tenant=None,
        system=SYSTEM_COLUMNS,
        token=None,
        stored=shape.stored,
    )
    writer = Writer(endpoint=store.endpoint, targets=[target], sleep=lambda _: None)
    return writer(0, table.to_batches(max_chunksize=3))[0]


def served(store, schema):
    """What the view has, as the source's types."""
    shape = store.shape
    columns = ", ".join(selected(name, each) for name, each in shape.stored.items())
    found = endpoint_arrow(store, f"SELECT {columns} FROM {shape.name(shape.view)} ORDER BY id")
    return restored(found, schema)


def endpoint_arrow(store, query):
    settings = {"output_format_arrow_string_as_string": 0}
    return store.endpoint.client().query_arrow(query, settings=settings)


def exact(column):
    """Each value with the sign of its zero, and all NaN alike."""
    return [
        _exact(each.cast(pa.binary()).as_py() if pa.types.is_string(each.type) else each.as_py())
        for each in column
    ]


def _exact(value):
    if isinstance(value, float):
        return "nan" if value != value else struct.pack(">d", value)
    if isinstance(value, dict):
        return {name: _exact(each) for name, each in value.items()}
    return list(map(_exact, value)) if isinstance(value, list | tuple) else value


GROUPS = {
    str(key): list(group)
    for key, group in itertools.groupby(
        sorted((c for c in CASES if "JSON" not in (c.asked or "")), key=lambda c: str(c.source)),
        key=lambda c: c.source,
    )
}


@pytest.mark.parametrize("source", GROUPS)
def test_what_is_held_comes_back_to_the_last_bit(endpoint, source):
    cases = GROUPS[source]
    store = store_of(endpoint, cases)
    table = rows_of(cases, [case.held for case in cases])
    receipt = write(store, table)
    assert receipt.code == 0, receipt.message
    found = served(store, table.schema)
    for n, case in enumerate(cases):
        assert exact(found[f"c{n}"]) == exact(table[f"c{n}"]), case.name


@pytest.mark.parametrize("source", {str(c.source): 0 for c in CASES})
def test_what_is_not_held_is_named_and_nothing_is_written(endpoint, source):
    cases = [case for case in CASES if str(case.source) == source]
    store = store_of(endpoint, cases)
    for n, case in enumerate(cases):
        for wrong in case.refused:
            values = [list(each.held[:1]) * 8 for each in cases]
            values[n][5] = wrong
            receipt = write(store, rows_of(cases, values))
            assert receipt.code == SchemaError.code, (case.name, wrong)
            assert f"column 'c{n}' is " in receipt.message
            assert "in row {'id': 5}, and" in receipt.message
    found = store.endpoint.client().query(
        f"SELECT count() FROM {store.shape.name(store.shape.rows)}"
    )
    assert found.result_rows == [(0,)]
