"""The Python client gql asks and subscribes, over HTTP and by websocket."""

import asyncio

import pytest
from gql import Client, gql
from gql.transport.exceptions import TransportClosed, TransportConnectionFailed, TransportQueryError
from gql.transport.httpx import HTTPXAsyncTransport
from gql.transport.websockets import WebsocketsTransport
from graphql import GraphQLError

from support.clients.trades_server import AT_ONCE, FIELD, told_by
from support.outbox.scripted_receiver import until
from support.workers.soak_length import rounds, soak_seconds

ROWS = f"""query($where: {FIELD}_bool_exp, $limit: Int) {{
  rows: {FIELD}(where: $where, order_by: {{id: asc}}, limit: $limit) {{ tenant id value }} }}"""
TOLD = f"""subscription($after: String) {{ told: {FIELD}(after: $after) {{
  operation data {{ tenant id value }} cursor }} }}"""
SECONDS = 180
"""The limit on a machine busy with other tests."""
SOAK_SECONDS = soak_seconds(240)
AGAIN_SECONDS = 0.1
AWAY = (OSError, TransportClosed, TransportConnectionFailed)


def transport_of(trades, way):
    if way == "http":
        return HTTPXAsyncTransport(url=trades.http)
    return WebsocketsTransport(url=trades.websocket)


def request(query, **variables):
    asked = gql(query)
    asked.variable_values = variables
    return asked


@pytest.mark.parametrize("way", ["http", "websocket"])
async def test_gql_checks_and_asks_queries(trades, way):
    """It reads the schema, refuses what the schema lacks, and gets rows and errors."""
    client = Client(transport=transport_of(trades, way), fetch_schema_from_transport=True)
    async with client as session:
        assert FIELD in client.schema.query_type.fields
        acme = request(ROWS, where={"tenant": {"_eq": "acme"}}, limit=1000)
        found = await session.execute(acme)
        assert {each["id"]: each["value"] for each in found["rows"]} == trades.rows["acme"]
        with pytest.raises(GraphQLError, match="Cannot query field 'nothing'"):
            await session.execute(request(f"{{ {FIELD} {{ nothing }} }}"))
        with pytest.raises(TransportQueryError) as refused:
            await session.execute(request(ROWS, limit=100_000))
        assert refused.value.errors[0]["extensions"]["code"] == "BAD_USER_INPUT"
        # Many at a time, on one connection.
        every = await asyncio.gather(
            *[session.execute(request(ROWS, where={"id": {"_eq": key}})) for key in range(40)]
        )
        keys = [each["id"] for some in every for each in some["rows"]]
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
                    async for said in session.subscribe(request(TOLD, after=after)):
                        self.messages.append(said["told"])
                        after = said["told"]["cursor"]
            except AWAY:
                pass
            await asyncio.sleep(AGAIN_SECONDS)

    async def has_taken(self, number):
        await until(lambda: len(self.messages) >= number, SECONDS)


@pytest.mark.timeout(SOAK_SECONDS + 600)
@pytest.mark.parametrize("most", [2, pytest.param(None, marks=pytest.mark.soak)])
async def test_gql_is_told_each_change_once_while_the_server_is_ended(
    trades, most, record_property
):
    subscriber = Subscriber(trades)

    following = asyncio.create_task(subscriber.run())
    await subscriber.has_taken(trades.total)
    for _ in rounds(most, SOAK_SECONDS):
        some = len(subscriber.messages) + trades.chance.randint(1, AT_ONCE)
        await asyncio.to_thread(trades.commit)
        # In the middle of what it is being told.
        await subscriber.has_taken(some)
        await asyncio.to_thread(trades.restart)
    await asyncio.to_thread(trades.commit)
    await subscriber.has_taken(trades.total)
    assert not following.done(), following
    following.cancel()
    await asyncio.wait([following])
    assert told_by(subscriber.messages) == trades.changes
    assert subscriber.connections == trades.ends + 1
    record_property("messages", len(subscriber.messages))
    record_property("ends", trades.ends)
