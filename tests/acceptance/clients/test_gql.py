"""The Python client gql asks and subscribes, over HTTP and by websocket."""

import asyncio

import pytest
from gql import Client, gql
from gql.transport.exceptions import TransportClosed, TransportConnectionFailed, TransportQueryError
from gql.transport.httpx import HTTPXAsyncTransport
from gql.transport.websockets import WebsocketsTransport
from graphql import GraphQLError

from support.clients.trades_server import FIELD
from support.errors import raises_naming

ROWS = f"""query($where: {FIELD}_bool_exp, $limit: Int) {{
  rows: {FIELD}(where: $where, order_by: {{id: asc}}, limit: $limit) {{ tenant id value }} }}"""
CHANGES = f"""subscription($after: String) {{ told: {FIELD}(after: $after) {{
  operation data {{ tenant id value }} cursor }} }}"""
AGAIN_SECONDS = 0.1
AWAY = (OSError, TransportClosed, TransportConnectionFailed)


def transport_of(trades, way):
    if way == "http":
        return HTTPXAsyncTransport(url=trades.http)
    return WebsocketsTransport(url=trades.websocket)


def request(query, **variables):
    parsed = gql(query)
    parsed.variable_values = variables
    return parsed


@pytest.mark.parametrize("way", ["http", "websocket"])
async def test_gql_checks_and_sends_queries(trades, way):
    """It reads the schema, refuses what the schema lacks, and gets rows and errors."""
    client = Client(transport=transport_of(trades, way), fetch_schema_from_transport=True)
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
            *[session.execute(request(ROWS, where={"id": {"_eq": key}})) for key in range(40)]
        )
        keys = [row["id"] for answer in answers for row in answer["rows"]]
        assert sorted(keys) == sorted(key for rows in trades.rows.values() for key in rows)


class Subscriber:
    """Follows a subscription with gql, and connects again after the last message."""

    def __init__(self, trades):
        self.trades, self.messages, self.connections = trades, [], 0

    async def run(self):
        after = None
        while True:
            try:
                async with Client(transport=transport_of(self.trades, "websocket")) as session:
                    self.connections += 1
                    async for result in session.subscribe(request(CHANGES, after=after)):
                        self.messages.append(result["told"])
                        after = result["told"]["cursor"]
            except AWAY:
                pass
            await asyncio.sleep(AGAIN_SECONDS)


async def test_gql_gets_each_change_once(trades, check_restarts):
    subscriber = Subscriber(trades)
    following = asyncio.create_task(subscriber.run())
    await asyncio.to_thread(check_restarts, lambda: subscriber.messages)
    assert not following.done(), following
    following.cancel()
    await asyncio.wait([following])
    assert subscriber.connections == trades.ends + 1
