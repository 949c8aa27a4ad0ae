"""GraphQL over HTTP as the specification has it, and what the server refuses."""

import json
from pathlib import Path

import pytest
from graphql import build_client_schema, get_introspection_query
from starlette.testclient import TestClient

from iscp_dagster import Mirror
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.failures import ClickHouseBusyError
from iscp_dagster.clickhouse.types.type_parser import parse_type
from iscp_dagster.model.errors import IscpError, UnavailableError
from iscp_dagster.serve.access import FunctionAccess
from iscp_dagster.serve.catalog import ServedCatalog
from iscp_dagster.serve.columns import build_column
from iscp_dagster.serve.graph.client_errors import log_and_describe_error
from iscp_dagster.serve.graph.documents import DocumentLimits
from iscp_dagster.serve.graph.schema_cache import SchemaCache
from iscp_dagster.serve.reads.caps import Caps
from iscp_dagster.serve.rows import QueryLimits, query_rows
from iscp_dagster.serve.web.app import GraphQLServerSettings, create_app
from runtime_support.endpoints.asgi_servers import uvicorn_of
from runtime_support.large_requests import status_of_large
from support.errors import assert_names
from support.lake.shop_indexes import Shop, ask

RESPONSE = "application/graphql-response+json"
MINE = {"Authorization": "Bearer of-both"}
BROWSER = {"Accept": "text/html"}
IDS = "{ shop_tickets { id } }"


def post(client, content, **headers):
    headers = {"Content-Type": "application/json", **MINE, **headers}
    return client.post("/graphql", content=content, headers=headers)


def post_query(client, query, **headers):
    return post(client, json.dumps({"query": query}), **headers)


def code_of(answer):
    return answer["errors"][0]["extensions"]["code"]


def test_an_answer_has_the_media_type_that_was_accepted(shop_client):
    for accept, media in {
        "*/*": "application/json",
        RESPONSE: RESPONSE,
        "application/json": "application/json",
        f"{RESPONSE}; charset=utf-8, application/json; q=0.9": RESPONSE,
        f"text/html, {RESPONSE};q=0.5, application/json;q=0.6": "application/json",
    }.items():
        answer = post_query(shop_client, IDS, Accept=accept)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == f"{media}; charset=utf-8"
        assert len(answer.json()["data"]["shop_tickets"]) == 5
    assert post_query(shop_client, IDS, Accept="text/html").status_code == 406


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("{ shop_tickets { id ", "GRAPHQL_PARSE_FAILED"),
        ("{ shop_tickets { ts_timestamp } }", "GRAPHQL_VALIDATION_FAILED"),
        ("{ shop_tickets(where: {_deleted: {_eq: 1}}) { id } }", "GRAPHQL_VALIDATION_FAILED"),
        ('{ shop_tickets(where: {photo: {_eq: "x"}}) { id } }', "GRAPHQL_VALIDATION_FAILED"),
        ('{ shop_tickets(where: {id: {_eq: "one"}}) { id } }', "GRAPHQL_VALIDATION_FAILED"),
        ("mutation { shop_tickets { id } }", "GRAPHQL_VALIDATION_FAILED"),
        ("query A { _tables } query B { _tables }", "BAD_USER_INPUT"),
        ("query A($a: Int!) { shop_tickets(limit: $a) { id } }", "BAD_USER_INPUT"),
        (f"{{ {'shop_tickets { id } ' * 30} }}", "QUERY_TOO_COMPLEX"),
        (f"{{ {' '.join(f'a{i}: _tables' for i in range(3000))} }}", "QUERY_TOO_COMPLEX"),
        (f"{{ a(b: {'[' * 1500}{']' * 1500}) }}", "QUERY_TOO_COMPLEX"),
        (f"{{ shop_tickets {{ {'id ' * 900} }} }}", "QUERY_TOO_COMPLEX"),
    ],
)
def test_a_refused_document_is_400_or_as_plain_json_200(shop_client, query, code):
    answer = post_query(shop_client, query, Accept=RESPONSE)
    assert (answer.status_code, code_of(answer.json())) == (400, code)
    assert "data" not in answer.json()
    assert post_query(shop_client, query, Accept="application/json").status_code == 200
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "query",
    [
        "{ shop_tickets(limit: 1001) { id } }",
        "{ shop_tickets(limit: -1) { id } }",
        "{ shop_tickets(offset: 10001) { id } }",
        "{ shop_tickets(where: {id: null}) { id } }",
        "{ shop_tickets(where: {id: {_is_null: null}}) { id } }",
        "{ shop_tickets(order_by: {id: asc, body: asc}) { id } }",
        '{ shop_tickets_vector(near: [1], tenant: "acme") { id } }',
        '{ shop_tickets_vector(near: [1e39, 0], tenant: "acme") { id } }',
    ],
)
def test_a_field_that_fails_has_a_code_and_no_data(shop_client, query):
    answer = post_query(shop_client, query, Accept=RESPONSE)
    assert (answer.status_code, code_of(answer.json())) == (200, "BAD_USER_INPUT")
    assert answer.json()["data"] is None


@pytest.mark.parametrize(
    ("type_", "argument", "value", "culprit"),
    [
        ("Int", "limit: $given", "many", "'many'"),
        ("shop_tickets_bool_exp", "where: $given", {"id": {"_eq": "x"}}, "'x'"),
        ("shop_tickets_bool_exp", "where: $given", {"no": {"_eq": 1}}, "'no'"),
    ],
)
def test_a_variable_of_another_type_is_named(shop_client, type_, argument, value, culprit):
    query = f"query($given: {type_}) {{ shop_tickets({argument}) {{ id }} }}"
    (error,) = ask(shop_client, query, "of-both", given=value)["errors"]
    assert error["extensions"] == {"code": "BAD_USER_INPUT"}
    assert_names(error["message"], culprit)


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        ("{", {}, 400),
        ("[]", {}, 400),
        ("[" * 100_000, {}, 400),
        ('{"query": 1}', {}, 400),
        ('{"query": "{ _tables }", "variables": []}', {}, 400),
        (b'{"query": "\xff"}', {}, 400),
        (r'{"query": "{ _tables } # \ud800"}', {}, 400),
        ('{"query": "{ _tables }", "variables": {"a": NaN}}', {}, 400),
        ('{"query": "{ _tables }"}', {"Content-Type": "text/plain"}, 415),
        ('{"query": "{ _tables }"}', {"Content-Type": "application/json; charset=latin1"}, 415),
        ('{"query": "' + "#" * 300_000 + '"}', {}, 413),
        ('{"query": "{ _tables }"}', {"Authorization": ""}, 401),
        ('{"query": "{ _tables }"}', {"Authorization": "Bearer of-nobody"}, 401),
    ],
)
def test_a_refused_request_has_its_status(shop_client, content, headers, status):
    answer = post(shop_client, content, **headers)
    assert answer.status_code == status
    assert list(answer.json()) == ["errors"]
    assert ("www-authenticate" in answer.headers) == (status == 401)


def test_a_body_without_a_length_is_cut_off_too(shop_client):
    def parts():
        yield b'{"query": "'
        for _ in range(100):
            yield b"#" * 10_000

    assert post(shop_client, parts()).status_code == 413


def test_too_large_a_request_is_answered_before_its_body_is_read():
    queries = create_app(GraphQLServerSettings(schemas=SchemaCache(load=ServedCatalog), environ={}))
    with uvicorn_of(queries) as server:
        assert status_of_large(server.url, "/graphql") == 413


def test_a_get_reads_and_changes_nothing(shop_client):
    def get(query, **more):
        return shop_client.get("/graphql", params={"query": query, **more}, headers=MINE)

    one = "query One($id: Int64) { shop_tickets(where: {id: {_eq: $id}}) { customer } }"
    answer = get(one, variables='{"id": "2"}', operationName="One").json()
    assert answer == {"data": {"shop_tickets": [{"customer": "acme"}]}}
    assert get(one, variables="{").status_code == 400
    assert shop_client.get("/graphql", headers=MINE).status_code == 400
    head = shop_client.head("/graphql", params={"query": IDS}, headers=MINE)
    assert (head.status_code, head.content) == (200, b"")
    assert shop_client.put("/graphql", headers=MINE).status_code == 405
    assert shop_client.get("/health").text == "ok\n"


def test_introspection_has_the_types_without_timestamps(shop_client):
    answer = ask(shop_client, get_introspection_query(), "of-none")
    schema = build_client_schema(answer["data"])
    fields = schema.type_map["shop_tickets"].fields
    assert {name: str(field.type) for name, field in fields.items()} == {
        "customer": "String!",
        "id": "Int64!",
        "body": "String",
        "price": "Decimal",
        "opened_at": "Timestamp",
        "ratio": "Float64",
        "photo": "Bytes",
        "v": "[Float64]!",
    }
    assert "ts_timestamp" not in schema.type_map["shop_tickets_bool_exp"].fields


def test_without_tokens_pages_of_other_sites_are_refused(shop):
    client = shop.client()
    body = {"query": IDS}
    assert len(ask(client, IDS)["data"]["shop_tickets"]) == 5
    for headers in (
        {"Origin": "https://elsewhere.example"},
        {"Host": "elsewhere.example"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        assert client.post("/graphql", json=body, headers=headers).status_code == 403
        assert client.get("/graphql", params=body, headers=headers).status_code == 403
        # Nor are they led to the editor.
        assert client.get("/graphql", headers={**headers, **BROWSER}).status_code == 403


TYPES = "{ __schema { types { name } } }"
ALL_TYPES = " ".join(f"t{n}: types {{ fields {{ type {{ name }} }} }}" for n in range(30))
FEW = {
    "caps": Caps(rows=3, cells=10, default_rows=2),
    "document_limits": DocumentLimits(depth=2, fields=3, roots=2),
}
TEN_CELLS = {"caps": Caps(rows=5, cells=10)}
FEW_BYTES = {"caps": Caps(introspection_fields=2_000, bytes=200)}


@pytest.mark.parametrize(
    ("bounds", "query", "outcome"),
    [
        (FEW, IDS, 2),
        (FEW, "{ shop_tickets(limit: 4) { id } }", "BAD_USER_INPUT"),
        (FEW, "{ shop_tickets(limit: 3) { id body } a: _tables }", "QUERY_TOO_COMPLEX"),
        (FEW, TYPES, "QUERY_TOO_COMPLEX"),
        (TEN_CELLS, "{ shop_tickets(limit: 5) { id body } }", 5),
        (TEN_CELLS, "{ shop_tickets(limit: 5) { id body price } }", "QUERY_TOO_COMPLEX"),
        (TEN_CELLS, "{ shop_tickets(limit: 5) { a: id b: id c: id } }", "QUERY_TOO_COMPLEX"),
        (FEW_BYTES, f"{{ __schema {{ {ALL_TYPES} }} }}", "QUERY_TOO_COMPLEX"),
        (FEW_BYTES, "{ shop_tickets { id body v opened_at price ratio } }", "QUERY_TOO_COMPLEX"),
        (FEW_BYTES, TYPES, 0),
    ],
)
def test_a_query_has_as_many_rows_as_the_caps_allow_or_is_refused(
    shop, tmp_path, bounds, query, outcome
):
    answer = ask(shop.client(tmp_path / "tokens", **bounds), query, "of-all")
    found = code_of(answer) if "errors" in answer else len(answer["data"].get("shop_tickets", ()))
    assert found == outcome


def test_why_a_function_of_tokens_fails_is_in_the_log_alone(shop, caplog):
    def fails(token):
        raise RuntimeError(f"no database for {token}")

    access = FunctionAccess(function=fails, import_path="tenants.of_token")
    client = TestClient(
        create_app(GraphQLServerSettings(schemas=SchemaCache(load=shop.catalog), access=access))
    )
    answer = post_query(client, IDS)
    assert (answer.status_code, code_of(answer.json())) == (500, "INTERNAL_SERVER_ERROR")
    assert "database" not in answer.text
    assert_names(caplog.text, "tenants.of_token", "RuntimeError", Path(__file__).name)
    assert "of-both" not in caplog.text


def test_an_index_appears_when_it_is_built_and_changes_with_its_columns(clickhouse_url):
    shop = Shop(ClickHouseEndpoint.parse(clickhouse_url), indexes=(Mirror(),))
    client, name = shop.client(), f"{shop.database}_tickets"
    query = f"{{ {name} {{ id }} }}"
    assert code_of(ask(client, query)) == "NOT_BUILT"
    assert ask(client, "{ _tables }") == {"data": {"_tables": []}}
    shop.build(Mirror())
    assert len(ask(client, query)["data"][name]) == 5
    assert ask(client, "{ _tables }") == {"data": {"_tables": [name]}}


def test_a_look_for_the_catalog_that_fails_leaves_the_schema(shop, caplog):
    failures = [UnavailableError("ClickHouse at http://secret:8123 did not answer.")]

    def load():
        if failures:
            raise failures[0]
        return shop.catalog()

    client = TestClient(
        create_app(
            GraphQLServerSettings(schemas=SchemaCache(load=load, refresh_seconds=0), environ={})
        )
    )
    answer = post_query(client, IDS)
    assert (answer.status_code, code_of(answer.json())) == (503, "UNAVAILABLE")
    assert "secret" not in answer.text
    failures.clear()
    assert "errors" not in ask(client, IDS)
    failures.append(ClickHouseBusyError("8 merges are running"))
    assert "errors" not in ask(client, IDS)
    assert_names(caplog.text, "8 merges are running")


@pytest.mark.parametrize(
    ("source", "limits", "code"),
    [
        ("numbers(1e12)", {"seconds": 0.2}, "TIMEOUT"),
        ("numbers(11)", {"rows": 10}, "QUERY_TOO_COMPLEX"),
        ("(SELECT number FROM numbers(1000))", {"bytes": 100}, "QUERY_TOO_COMPLEX"),
    ],
)
def test_clickhouse_ends_what_costs_more_than_the_caps(clickhouse_url, source, limits, code):
    column = build_column("number", parse_type("UInt64"))
    condition = " WHERE sipHash64(number) = 1" if "seconds" in limits else ""
    with pytest.raises(IscpError) as failure:
        query_rows(
            ClickHouseEndpoint.parse(clickhouse_url),
            f"SELECT number FROM {source}{condition}",
            {},
            [column],
            QueryLimits(**limits),
        )
    message, found_code = log_and_describe_error(failure.value)
    assert found_code == code
    assert "http" not in message
