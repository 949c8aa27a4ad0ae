"""GraphQL over HTTP as the specification has it, and what the server refuses."""

import json

import pytest
from starlette.testclient import TestClient

from iscp_dagster import Mirror
from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.connect.failures import ClickHouseBusyError
from iscp_dagster.clickhouse.types.type_parser import parse_type
from iscp_dagster.model.errors import IscpError, UnavailableError
from iscp_dagster.serve.access import FunctionAccess
from iscp_dagster.serve.columns import build_column
from iscp_dagster.serve.graph.client_errors import describe_error as said_of
from iscp_dagster.serve.graph.documents import DocumentLimits
from iscp_dagster.serve.graph.schemas import SchemaCache
from iscp_dagster.serve.reads.caps import Caps
from iscp_dagster.serve.rows import QueryLimits, query_rows
from iscp_dagster.serve.web.app import GraphQLServerSettings, create_app
from support.lake.shop_indexes import Shop, ask

RESPONSE = "application/graphql-response+json"
MINE = {"Authorization": "Bearer of-both"}
IDS = "{ shop_tickets { id } }"


def post(client, content, **headers):
    given = {"Content-Type": "application/json", **MINE, **headers}
    return client.post("/graphql", content=content, headers=given)


def sent(client, query, **headers):
    return post(client, json.dumps({"query": query}), **headers)


def code(answer):
    return answer.json()["errors"][0]["extensions"]["code"]


def test_an_answer_has_the_media_type_that_was_accepted(shop_client):
    for accept, media in {
        "*/*": "application/json",
        RESPONSE: RESPONSE,
        "application/json": "application/json",
        f"{RESPONSE}; charset=utf-8, application/json; q=0.9": RESPONSE,
        f"text/html, {RESPONSE};q=0.5, application/json;q=0.6": "application/json",
    }.items():
        answer = sent(shop_client, IDS, Accept=accept)
        assert (answer.status_code, answer.headers["content-type"]) == (
            200,
            f"{media}; charset=utf-8",
        )
        assert len(answer.json()["data"]["shop_tickets"]) == 5
    assert sent(shop_client, IDS, Accept="text/html").status_code == 406


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("{ shop_tickets { id ", "GRAPHQL_PARSE_FAILED"),
        ("{ shop_tickets { ts_timestamp } }", "GRAPHQL_VALIDATION_FAILED"),
        ('{ shop_tickets(where: {ts_timestamp: {_gt: "1"}}) { id } }', "GRAPHQL_VALIDATION_FAILED"),
        ("{ shop_tickets { _version } }", "GRAPHQL_VALIDATION_FAILED"),
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
def test_a_refused_document_is_400_or_as_plain_json_200(shop_client, query, said):
    answer = sent(shop_client, query, Accept=RESPONSE)
    assert (answer.status_code, code(answer), "data" in answer.json()) == (400, said, False)
    assert sent(shop_client, query, Accept="application/json").status_code == 200
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("{ shop_tickets(limit: 1001) { id } }", "BAD_USER_INPUT"),
        ("{ shop_tickets(limit: -1) { id } }", "BAD_USER_INPUT"),
        ("{ shop_tickets(offset: 10001) { id } }", "BAD_USER_INPUT"),
        ("{ shop_tickets(where: {id: null}) { id } }", "BAD_USER_INPUT"),
        ("{ shop_tickets(where: {id: {_is_null: null}}) { id } }", "BAD_USER_INPUT"),
        ("{ shop_tickets(order_by: {id: asc, body: asc}) { id } }", "BAD_USER_INPUT"),
        ('{ shop_tickets_vector(near: [1], tenant: "acme") { id } }', "BAD_USER_INPUT"),
        ('{ shop_tickets_vector(near: [1e39, 0], tenant: "acme") { id } }', "BAD_USER_INPUT"),
    ],
)
def test_a_field_that_fails_has_a_code_and_no_data(shop_client, query, said):
    answer = sent(shop_client, query, Accept=RESPONSE)
    assert (answer.status_code, code(answer), answer.json()["data"]) == (200, said, None)


@pytest.mark.parametrize(
    ("type_", "asked", "value", "said"),
    [
        ("Int", "limit: $given", "many", "Int cannot represent non-integer value: 'many'"),
        (
            "shop_tickets_bool_exp",
            "where: $given",
            {"id": {"_eq": "x"}},
            "'x' is not a whole number",
        ),
        ("shop_tickets_bool_exp", "where: $given", {"no": {"_eq": 1}}, "Field 'no' is not defined"),
    ],
)
def test_a_variable_of_another_type_is_told(shop_client, type_, asked, value, said):
    query = f"query($given: {type_}) {{ shop_tickets({asked}) {{ id }} }}"
    (error,) = ask(shop_client, query, "of-both", given=value)["errors"]
    assert error["extensions"] == {"code": "BAD_USER_INPUT"}
    assert said in error["message"]


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
        ('{"query": "{ _tables }"}', {"Authorization": "Basic of-both"}, 401),
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


def test_a_get_reads_and_changes_nothing(shop_client):
    def got(query, **more):
        return shop_client.get("/graphql", params={"query": query, **more}, headers=MINE)

    one = "query One($id: Int64) { shop_tickets(where: {id: {_eq: $id}}) { customer } }"
    found = got(one, variables='{"id": "2"}', operationName="One").json()
    assert found == {"data": {"shop_tickets": [{"customer": "acme"}]}}
    assert got(one, variables="{").status_code == 400
    assert shop_client.get("/graphql", headers=MINE).status_code == 400
    head = shop_client.head("/graphql", params={"query": IDS}, headers=MINE)
    assert (head.status_code, head.content) == (200, b"")
    assert shop_client.put("/graphql", headers=MINE).status_code == 405
    assert shop_client.get("/health").text == "ok\n"


def test_introspection_tells_types_and_what_was_left_out(shop_client):
    from graphql import build_client_schema, get_introspection_query

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


def test_caps_are_the_servers(shop, tmp_path):
    caps = Caps(rows=3, cells=10, default_rows=2)
    client = shop.client(
        tmp_path / "tokens", caps=caps, document_limits=DocumentLimits(depth=2, fields=3, roots=2)
    )

    def asked(query):
        answer = ask(client, query, "of-all")
        found = answer.get("errors", [{"extensions": {"code": ""}}])[0]["extensions"]["code"]
        return found, len((answer.get("data") or {}).get("shop_tickets", ()))

    assert asked(IDS) == ("", 2)
    assert asked("{ shop_tickets(limit: 4) { id } }") == ("BAD_USER_INPUT", 0)
    assert asked("{ shop_tickets(limit: 3) { id body } a: _tables }") == ("QUERY_TOO_COMPLEX", 0)
    both = "{ shop_tickets(limit: 3) { id } b: shop_tickets(limit: 3) { id } }"
    assert asked(both) == ("QUERY_TOO_COMPLEX", 0)
    assert asked("{ __schema { types { name } } }") == ("QUERY_TOO_COMPLEX", 0)


def test_rows_may_be_all_that_the_cells_allow(shop, tmp_path):
    client = shop.client(tmp_path / "tokens", caps=Caps(rows=5, cells=10))
    query = "{ shop_tickets(limit: 5) { id body } }"
    assert len(ask(client, query, "of-all")["data"]["shop_tickets"]) == 5
    query = "{ shop_tickets(limit: 5) { id body price } }"
    assert ask(client, query, "of-all")["errors"][0]["extensions"] == {"code": "QUERY_TOO_COMPLEX"}


def test_introspection_ends_at_its_cap_and_rows_at_their_bytes(shop, tmp_path):
    client = shop.client(tmp_path / "tokens", caps=Caps(introspection_fields=2_000, bytes=200))
    again = " ".join(f"t{n}: types {{ fields {{ type {{ name }} }} }}" for n in range(30))
    wide = f"{{ __schema {{ {again} }} }}"
    for query in (wide, "{ shop_tickets { id body v opened_at price ratio } a: _tables }"):
        answer = ask(client, query, "of-all")
        assert answer["errors"][0]["extensions"] == {"code": "QUERY_TOO_COMPLEX"}
    assert "errors" not in ask(client, "{ __schema { types { name } } }", "of-all")


def test_a_column_counts_under_each_of_its_names(shop, tmp_path):
    client = shop.client(tmp_path / "tokens", caps=Caps(rows=5, cells=10))
    query = "{ shop_tickets(limit: 5) { a: id b: id c: id } }"
    assert ask(client, query, "of-all")["errors"][0]["extensions"] == {"code": "QUERY_TOO_COMPLEX"}


def test_what_a_function_or_the_server_says_when_it_fails_stays_with_the_server(shop, caplog):
    def fails(token):
        raise RuntimeError(f"no database for {token}")

    access = FunctionAccess(function=fails, import_path="of the test")
    client = TestClient(
        create_app(GraphQLServerSettings(schemas=SchemaCache(load=shop.catalog), access=access))
    )
    answer = sent(client, IDS)
    assert (answer.status_code, code(answer)) == (500, "INTERNAL_SERVER_ERROR")
    assert "database" not in answer.text
    assert "The function of the test failed: RuntimeError in test_serve_http.py" in caplog.text
    assert "of-both" not in caplog.text


def test_an_index_appears_when_it_is_built_and_changes_with_its_columns(clickhouse_url):
    shop = Shop(Endpoint.parse(clickhouse_url), indexes=(Mirror(),))
    client, name = shop.client(), f"{shop.database}_tickets"
    query = f"{{ {name} {{ id }} }}"
    assert ask(client, query)["errors"][0]["extensions"] == {"code": "NOT_BUILT"}
    assert ask(client, "{ _tables }") == {"data": {"_tables": []}}
    shop.build(Mirror())
    assert len(ask(client, query)["data"][name]) == 5
    assert ask(client, "{ _tables }") == {"data": {"_tables": [name]}}


class Failing:
    """A look for the catalog that fails as it is told to."""

    def __init__(self, shop):
        self.shop, self.error = shop, None

    def __call__(self):
        if self.error:
            raise self.error
        return self.shop.catalog()


def test_a_look_that_fails_leaves_the_schema(shop, caplog):
    look = Failing(shop)
    look.error = UnavailableError("ClickHouse at http://secret:8123 did not answer.")
    client = TestClient(
        create_app(
            GraphQLServerSettings(schemas=SchemaCache(load=look, refresh_seconds=0), environ={})
        )
    )
    answer = sent(client, IDS)
    assert (answer.status_code, code(answer)) == (503, "UNAVAILABLE")
    assert "secret" not in answer.text
    look.error = None
    assert "errors" not in ask(client, IDS)
    look.error = ClickHouseBusyError("busy")
    assert "errors" not in ask(client, IDS)
    assert "The schema stays as it was: busy" in caplog.text


@pytest.mark.parametrize(
    ("source", "limits", "said"),
    [
        ("numbers(1e12)", {"seconds": 0.2}, "TIMEOUT"),
        ("numbers(11)", {"rows": 10}, "QUERY_TOO_COMPLEX"),
        ("(SELECT number FROM numbers(1000))", {"bytes": 100}, "QUERY_TOO_COMPLEX"),
    ],
)
def test_clickhouse_ends_what_costs_more_than_the_caps(clickhouse_url, source, limits, said):
    shown = build_column("number", parse_type("UInt64"))
    condition = " WHERE sipHash64(number) = 1" if "seconds" in limits else ""
    with pytest.raises(IscpError) as failed:
        query_rows(
            Endpoint.parse(clickhouse_url),
            f"SELECT number FROM {source}{condition}",
            {},
            [shown],
            QueryLimits(**limits),
        )
    message, code = said_of(failed.value)
    assert code == said
    assert "http" not in message
