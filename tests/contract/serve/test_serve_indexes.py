"""Indexes of other forms: over several shards, of a view's changes, with binary columns."""

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from starlette.testclient import TestClient

from iscp_dagster import Changes, FullText, Mirror, SourceTable, Vector
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.tables.ddl import IndexShape
from iscp_dagster.model.declared.images import IMAGE_FIELDS
from iscp_dagster.model.declared.schema import DeltaField, Primitive
from iscp_dagster.model.declared.tables import expand_shards
from iscp_dagster.serve.access import FunctionAccess
from iscp_dagster.serve.catalog import read_catalog
from iscp_dagster.serve.graph.schema_cache import CatalogLoader, SchemaCache
from iscp_dagster.serve.live.images import Span
from iscp_dagster.serve.live.messages import ChangeFilter
from iscp_dagster.serve.live.positions import ChangePosition
from iscp_dagster.serve.live.service import build_image_reader
from iscp_dagster.serve.web.app import GraphQLServerSettings, create_app
from support.errors import assert_names
from support.lake.shop_indexes import Shop, ask
from support.live.changes_index import ImageTable

TENANTS = {
    "a": ["a"],
    "both": ["a", "b"],
    "default": ["default"],
    "seven": ["7", "07", "x", "99999999999999999999"],
}


def client_of(load):
    access = FunctionAccess(function=TENANTS.get, import_path="of the test")
    return TestClient(
        create_app(GraphQLServerSettings(schemas=SchemaCache(load=load), access=access, environ={}))
    )


def serve_tables(tables, endpoints):
    return client_of(lambda: read_catalog(tables, endpoints, lambda *_: ()))


@pytest.fixture(scope="module")
def sharded(clickhouse_url):
    """Spread a table over two databases of one server, and fill both by hand."""
    shards = [ClickHouseEndpoint.parse(f"{clickhouse_url}/?database=serve{n}") for n in range(2)]
    by = {"hash_function": "cityHash64", "key": ["id"]}
    kinds = [
        Mirror(sharding=by),
        FullText("body", sharding=by),
        Vector("v", dimension=2, sharding=by),
    ]
    source = expand_shards(SourceTable("far.items", key="id", indexes=kinds), 2)
    for shard, endpoint in enumerate(shards):
        client = endpoint.get_client()
        client.command(f"CREATE DATABASE IF NOT EXISTS serve{shard}")
        columns = "id Int64, body Nullable(String), ratio Nullable(Float64), v Array(Float32)"
        client.command(f"CREATE TABLE serve{shard}.held ({columns}) ENGINE = MergeTree ORDER BY id")
        rows = [
            (n, f"word {n}", [None, float("nan"), n / 2][n % 3], [1.0, float(n)])
            for n in range(shard, 20, 2)
        ]
        client.insert(f"serve{shard}.held", rows)
        for view in ("mirror", "text", "vector"):
            client.command(
                f"CREATE VIEW serve{shard}.items_{view} AS SELECT * FROM serve{shard}.held"
            )
        distance = "cosineDistance(v, {query:Array(Float32)})"
        client.command(
            f"CREATE VIEW serve{shard}.items_vector_nearest AS SELECT *, {distance} AS distance "
            f"FROM serve{shard}.held ORDER BY distance LIMIT {{k:UInt32}}"
        )
    return serve_tables([source], shards)


@pytest.mark.parametrize(
    ("page", "ids"),
    [
        ("limit: 3", [0, 1, 2]),
        ("limit: 3, offset: 9", [9, 10, 11]),
        ("order_by: {id: desc}, limit: 3, offset: 1", [18, 17, 16]),
        ("order_by: {ratio: desc}, limit: 8", [0, 3, 6, 9, 12, 15, 18, 1]),
        ("order_by: {ratio: asc}, limit: 2, offset: 5", [17, 1]),
        ("order_by: {ratio: asc_nulls_first}, limit: 1, offset: 7", [2]),
        ('where: {id: {_in: ["3", "4"]}}', [3, 4]),
    ],
)
def test_a_sharded_index_is_read_from_all_shards_in_one_order(sharded, page, ids):
    answer = ask(sharded, f"{{ far_items({page}) {{ id }} }}", "default")
    assert [int(row["id"]) for row in answer["data"]["far_items"]] == ids


def test_words_and_neighbours_of_all_shards(sharded):
    words, near = 'far_items_text(words: "word 7")', "far_items_vector(near: [1, 6], limit: 3)"
    data = ask(sharded, f"{{ {words} {{ id }} {near} {{ id }} }}", "default")["data"]
    assert data["far_items_text"] == [{"id": "7"}]
    assert [row["id"] for row in data["far_items_vector"]] == ["6", "7", "5"]
    # A table without tenants is of the default tenant.
    data = ask(sharded, f"{{ far_items {{ id }} {words} {{ id }} {near} {{ id }} }}", "a")["data"]
    assert data == {"far_items": [], "far_items_text": [], "far_items_vector": []}


def test_the_rows_of_a_view_are_the_last_images_of_its_changes(clickhouse_url):
    trades = ImageTable(ClickHouseEndpoint.parse(clickhouse_url), "folded")
    trades.begin("a", 3, [(1, 10), (2, 20)])
    trades.begin("b", 2, [(1, 7)])
    trades.write("a", [(4, 0, 1, 2, 10, 11), (4, 1, 2, 3, 20, None), (5, 0, 3, 1, None, 30)])
    trades.write("a", [(6, 0, 2, 1, None, 21), (6, 1, 3, 2, 30, 31)])
    client = serve_tables([trades.source], [trades.endpoint])

    def read(token, where="{}"):
        query = f"{{ folded_big(where: {where}) {{ tenant id value }} }}"
        return [tuple(row.values()) for row in ask(client, query, token)["data"]["folded_big"]]

    of_a = [("a", 1, 11), ("a", 2, 21), ("a", 3, 31)]
    assert read("a") == of_a
    assert read("both") == [*of_a, ("b", 1, 7)]
    # Conditions are about the present value, not about earlier ones.
    assert read("both", "{value: {_in: [10, 20, 30]}}") == []
    assert read("both", "{value: {_gt: 20}}") == of_a[1:]


def test_numbers_name_tenants_by_their_own_text_alone(clickhouse_url):
    endpoint = ClickHouseEndpoint.parse(clickhouse_url)
    endpoint.get_client().command("CREATE DATABASE IF NOT EXISTS numbered")
    endpoint.get_client().command(
        "CREATE VIEW numbered.t_mirror AS SELECT toInt32(number) AS n, toInt64(1) AS id "
        "FROM numbers(10)"
    )
    source = SourceTable("numbered.t", key="id", tenant="n", indexes=[Mirror()])
    client = serve_tables([source], [endpoint])
    assert ask(client, "{ numbered_t { n } }", "seven")["data"]["numbered_t"] == [{"n": 7}]


def test_binary_columns_are_those_of_the_delta_table(clickhouse_url, tmp_path):
    endpoint = ClickHouseEndpoint.parse(clickhouse_url)
    shop = Shop(endpoint, indexes=(Mirror(),))
    shop.build(Mirror())
    name = f"{shop.database}_tickets"
    loader = CatalogLoader(tables=[shop.source], endpoints=[endpoint], lake=str(tmp_path))
    catalog = loader()
    assert (catalog.queries, catalog.unbuilt) == ({}, {name})
    assert_names(catalog.notes[0], name, "Delta log")
    assert str(tmp_path) not in catalog.notes[0]
    schema = pa.schema([("customer", pa.string()), ("photo", pa.binary()), ("body", pa.string())])
    path = tmp_path / shop.database / "tickets"
    write_deltalake(path, schema.empty_table(), partition_by=["customer"])
    columns = loader().queries[name].by_field
    assert columns["photo"].scalar.name == "Bytes"
    assert columns["body"].scalar.name == "String"
    # It is not read again while the columns stay.
    path.rename(tmp_path / "elsewhere")
    assert loader().queries[name].by_field == columns


def test_null_parts_are_answered_as_the_index_has_them(clickhouse_url):
    rules = {rule: Mirror(name=rule, nulls=rule) for rule in ("empty", "flag", "json")}
    shop = Shop(ClickHouseEndpoint.parse(clickhouse_url), indexes=tuple(rules.values()))
    vectors = [None, [], [0.5, 1.0]]
    rows = [("acme", n, "x", "1.50", 0, 0.5, None, v) for n, v in enumerate(vectors)]
    for index in rules.values():
        shop.build(index, rows)

    def read(rule, fields, where="{}"):
        query = f"{{ {shop.database}_tickets_{rule}(where: {where}) {{ {fields} }} }}"
        answer = ask(shop.client(), query)
        assert "errors" not in answer, answer
        (rows,) = answer["data"].values()
        return [tuple(row.values()) for row in rows]

    assert read("empty", "v") == [([],), ([],), ([0.5, 1.0],)]
    assert read("flag", "v v_is_null") == [([], True), ([], False), ([0.5, 1.0], False)]
    assert read("flag", "id", "{v_is_null: {_eq: true}}") == [("0",)]
    assert read("json", "v") == [(None,), ("[]",), ("[0.5,1.0]",)]
    assert read("json", "id", "{v: {_is_null: true}}") == [("0",)]


def test_a_second_column_of_one_name_in_graphql_is_left_out_alone(clickhouse_url):
    """Conditions, changes and other tables work; a subscriber gets the changes that it can see."""
    endpoint = ClickHouseEndpoint.parse(clickhouse_url)
    names = ("id", "größe", "grüße")
    fields = [DeltaField(name=name, type=Primitive("integer")) for name in names]
    source = SourceTable("umlaute.t", key="id", indexes=[Mirror(), Changes()])
    mirror, changes = shapes = [
        IndexShape(source=source, index=index, fields=columns)
        for index, columns in zip(source.indexes, (fields, [*fields, *IMAGE_FIELDS]), strict=True)
    ]
    client = endpoint.get_client()
    for shape in shapes:
        for statement in (*shape.render_create_statements(), *shape.render_view_statements()):
            client.command(statement)
    client.command(
        f"INSERT INTO {mirror.qualify_name(mirror.rows)} VALUES (1, 5, 7, 1, now64(), 0)"
    )
    images = [
        (1, 5, 7, 1, 1, [], 0, 2),
        *((1, 5, 7 + image, 2, image, ["grüße"], 0, 3) for image in (0, 1)),
        *((1, 5 + image, 8, 2, image, ["größe", "grüße"], 0, 4) for image in (0, 1)),
    ]
    columns = [*names, "_change", "_image", "_fields", "_ordinal", "_version"]
    client.insert(changes.qualify_name(changes.rows), images, column_names=columns)
    other = Shop(endpoint, indexes=(Mirror(),))
    other.build(other.indexes[0])
    catalog = read_catalog([source, other.source], [endpoint], lambda *_: ())
    (note,) = catalog.notes
    assert_names(note, "umlaute_t", "grüße", "gr__e", "größe")
    description = '__type(name: "Query") { description }'
    query = f"{{ umlaute_t(where: {{gr__e: {{_eq: 5}}}}) {{ id gr__e }} {description} }}"
    answer = ask(client_of(lambda: catalog), query, "default")
    assert "errors" not in answer, answer
    assert answer["data"]["umlaute_t"] == [{"id": 1, "gr__e": 5}]
    assert note in answer["data"]["__type"]["description"]
    assert f"{other.database}_tickets" in catalog.queries
    served = catalog.changes["umlaute_t"]
    span = Span(
        tenant="default", after=ChangePosition.from_commit(1), upto=ChangePosition.from_commit(9)
    )
    page = build_image_reader(served).read_changes([span], 9)
    changes = ChangeFilter(field_names={column.name: column.field for column in served.columns})
    messages = [changes.build_message(timed_change, "") for timed_change in page.stamped_changes]
    assert [message and (message.operation, message.fields) for message in messages] == [
        ("INSERT", ()),
        None,
        ("UPDATE", ("gr__e",)),
    ]


VALUES = {
    # ClickHouse's type: a value in SQL, and in an answer
    "Bool": ("true", True),
    "Int8": ("-1", -1),
    "UInt16": ("65535", 65535),
    "UInt32": ("4294967295", "4294967295"),
    "Int64": ("-5", "-5"),
    "UInt64": ("18446744073709551615", "18446744073709551615"),
    "Int128": ("-7", "-7"),
    "UInt256": ("toUInt256(7)", "7"),
    "Float32": ("0.1", 0.1),
    "BFloat16": ("0.5", 0.5),
    "Float64": ("-inf", "-Infinity"),
    "Decimal(20, 3)": ("1.5", "1.500"),
    "String": ("'ä\"'", 'ä"'),
    "FixedString(2)": ("'ab'", "ab"),
    "LowCardinality(Nullable(String))": ("NULL", None),
    "Enum8('a' = 1)": ("'a'", "a"),
    "IPv4": ("'10.0.0.1'", "10.0.0.1"),
    "IPv6": ("'::1'", "::1"),
    "UUID": ("'12345678-9abc-def0-1234-56789abcdef0'", "12345678-9abc-def0-1234-56789abcdef0"),
    "Date": ("'2024-02-29'", "2024-02-29"),
    "Date32": ("'1900-01-01'", "1900-01-01"),
    "DateTime('Europe/Berlin')": ("'2024-01-01 01:00:00'", "2024-01-01T00:00:00Z"),
    "DateTime64(9, 'UTC')": ("'1969-12-31 23:59:59.5'", "1969-12-31T23:59:59.500000000Z"),
    "Array(Array(Int64))": ("[[1], []]", [["1"], []]),
    "Array(Nullable(Float64))": ("[1, NULL, nan]", [1, None, "NaN"]),
    "Tuple(a Int64, b Array(String))": ("(1, ['x'])", {"a": "1", "b": ["x"]}),
    "Map(String, Int64)": ("map('k', 1)", {"k": "1"}),
    "Nested(a Int8, b String)": ("[(1, 'x')]", [{"a": 1, "b": "x"}]),
    "JSON": ('\'{"a": {"b": 1}}\'', {"a": {"b": "1"}}),
    "Dynamic": ("42::Int64", "42"),
    "Variant(Int64, String)": ("'x'", "x"),
    "Point": ("(1, 2)", [1, 2]),
}


def test_a_value_of_every_type_has_the_form_of_its_scalar(clickhouse_url):
    endpoint = ClickHouseEndpoint.parse(clickhouse_url)
    client = endpoint.get_client()
    client.command("CREATE DATABASE IF NOT EXISTS kept")
    columns = ", ".join(f"c{number} {type_}" for number, type_ in enumerate(VALUES))
    settings = {"flatten_nested": 0, "allow_suspicious_low_cardinality_types": 1}
    client.command(
        f"CREATE TABLE kept.held (id Int8, {columns}) ENGINE = MergeTree ORDER BY id",
        settings=settings,
    )
    values = ", ".join(value for value, _ in VALUES.values())
    client.command(f"INSERT INTO kept.held SELECT 1, {values}")
    client.command("CREATE VIEW kept.all_mirror AS SELECT * FROM kept.held")
    source = SourceTable("kept.all", key="id", indexes=[Mirror()])
    served = serve_tables([source], [endpoint])
    fields = " ".join(f"c{number}" for number in range(len(VALUES)))
    answer = ask(served, f"{{ kept_all {{ {fields} }} }}", "default")
    (row,) = answer["data"]["kept_all"]
    for (type_, (_, expected)), value in zip(VALUES.items(), row.values(), strict=True):
        assert value == expected, type_
