"""The Python client gql asks over both transports, and graphql-http (npm) audits the server."""

import asyncio
import json
import subprocess
from collections import Counter

import pytest
from gql import Client, gql
from gql.transport.exceptions import TransportQueryError
from gql.transport.httpx import HTTPXAsyncTransport
from gql.transport.websockets import WebsocketsTransport
from graphql import GraphQLError

from support.clients.npm import node_command
from support.clients.trades_server import FIELD, serving_trades
from support.errors import raises_naming

ROWS = f"""query($where: {FIELD}_bool_exp, $limit: Int) {{
  rows: {FIELD}(where: $where, order_by: {{id: asc}}, limit: $limit) {{ tenant id value }} }}"""
AUDITS = 60
SECONDS = 120


@pytest.fixture(scope="module")
def trades(clickhouse_url, tmp_path_factory):
    with serving_trades(clickhouse_url, tmp_path_factory.mktemp("trades")) as served:
        yield served


def request(query, **variables):
    parsed = gql(query)
    parsed.variable_values = variables
    return parsed


@pytest.mark.parametrize("way", ["http", "websocket"])
async def test_gql_checks_and_sends_queries(trades, way):
    """It reads the schema, refuses what the schema lacks, and gets rows and errors."""
    transports = {"http": HTTPXAsyncTransport, "websocket": WebsocketsTransport}
    transport = transports[way](url=getattr(trades, way))
    client = Client(transport=transport, fetch_schema_from_transport=True)
    async with client as session:
        assert FIELD in client.schema.query_type.fields
        acme = request(ROWS, where={"tenant": {"_eq": "acme"}}, limit=1000)
        answer = await session.execute(acme)
        assert {row["id"]: row["value"] for row in answer["rows"]} == trades.rows["acme"]
        with raises_naming(GraphQLError, "'nothing'", f"'{FIELD}'"):
            await session.execute(request(f"{{ {FIELD} {{ nothing }} }}"))
        with pytest.raises(TransportQueryError) as refused:
            await session.execute(request(ROWS, limit=100_000))
        assert refused.value.errors[0]["extensions"]["code"] == "BAD_USER_INPUT"
        # Many at a time, on one connection.
        answers = await asyncio.gather(
            *[session.execute(request(ROWS, where={"id": {"_eq": key}})) for key in range(20)]
        )
        keys = [row["id"] for answer in answers for row in answer["rows"]]
        assert sorted(keys) == sorted(
            key for rows in trades.rows.values() for key in rows if key < 20
        )


def test_every_audit_of_graphql_http_passes(packages, trades, record_property):
    command = node_command(packages, "audits.js", trades.http)
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)
    audits = json.loads(result.stdout)
    assert [audit for audit in audits if audit["status"] != "ok"] == []
    assert len(audits) >= AUDITS
    levels = Counter(audit["name"].split()[0] for audit in audits)
    record_property(f"{len(audits)} audits passed", dict(levels))
