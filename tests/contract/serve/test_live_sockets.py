"""Subscriptions through real websockets, over ClickHouse and an ISCP log in SQLite."""

import asyncio
import json

import pytest
from websockets.asyncio.client import connect

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.model.declared.images import ChangeKind
from iscp_dagster.serve.access import FileAccess
from iscp_dagster.serve.live.transport.socket import SocketBounds
from iscp_dagster.serve.web.app import GRAPHQL_PATH
from support.live.changes_index import ImageTable, reach, register
from support.live.subscription_server import BIG, client, serving
from support.live.view_history import until

QUERY = f"""subscription($where: {BIG}_bool_exp, $after: String, $snapshot: Boolean!) {{
  told: {BIG}(where: $where, after: $after, snapshot: $snapshot) {{
    operation ...rest ts_timestamp cursor
  }}
}}
fragment rest on {BIG}_change {{ data {{ __typename number: id value tenant }} fields }}"""
INSERT, UPDATE, DELETE = ChangeKind.INSERT, ChangeKind.UPDATE, ChangeKind.DELETE


class Table:
    """The rows and the log of a served index, with the next version."""

    def __init__(self, log, images):
        self.log, self.images, self.version = log, images, 10

    def change(self, tenant, *changes):
        """Write one commit of (key, operation, before, after), and confirm it."""
        self.version += 1
        self.images.write(
            tenant, [(self.version, number, *each) for number, each in enumerate(changes)]
        )
        reach(self.log, self.version, tenant)


@pytest.fixture(scope="module")
def images(clickhouse_url):
    return ImageTable(Endpoint.parse(clickhouse_url), "live")


@pytest.fixture
def table(images, log):
    """Two tenants at version 10, with three rows each."""
    register(log, "acme", "globex")
    for tenant in ("acme", "globex"):
        images.begin(tenant, 10, [(key, key * 10) for key in (1, 2, 3)])
    reach(log, 10, "acme", "globex")
    return Table(log, images)


def feed_of(running):
    (feed,) = running.live.hub.feeds.values()
    return feed


async def test_a_snapshot_then_changes_then_on_from_a_cursor(table):
    with serving(table.log, table.images.endpoint) as running:
        async with client(running) as one:
            await one.subscribe(QUERY, snapshot=True, where={"id": {"_lte": 2}})
            rows = [await one.told() for _ in range(4)]
            assert [(each["data"]["tenant"], each["data"]["number"]) for each in rows] == [
                ("acme", 1),
                ("acme", 2),
                ("globex", 1),
                ("globex", 2),
            ]
            assert {each["operation"] for each in rows} == {"INSERT"}
            assert rows[0]["data"]["__typename"] == BIG
            table.change("acme", (1, UPDATE, 10, 11), (3, UPDATE, 30, 31), (2, DELETE, 20, None))
            told = [await one.told() for _ in range(2)]
            assert [
                (each["operation"], each["data"]["value"], each["fields"]) for each in told
            ] == [
                ("UPDATE", 11, ["value"]),
                ("DELETE", 20, []),
            ]
            assert told[0]["ts_timestamp"] == f"{(1_767_225_600 + 11) * 10**9}"
            await one.say(type="complete", id="1")
            await one.subscribe(QUERY, "2", snapshot=False, after=told[0]["cursor"])
            assert (await one.told())["data"]["number"] == 3
            assert (await one.told())["operation"] == "DELETE"
        async with client(running) as other:
            # Within the snapshot, after its second row.
            await other.subscribe(
                QUERY, snapshot=True, after=rows[1]["cursor"], where={"id": {"_lte": 2}}
            )
            again = [await other.told() for _ in range(4)]
            assert again[:2] == rows[2:]
            assert [each["operation"] for each in again[2:]] == ["UPDATE", "DELETE"]


async def test_many_subscribers_are_read_once_and_nobody_is_asked_without_any(table):
    with serving(table.log, table.images.endpoint) as running:
        hub = running.live.hub
        async with client(running) as one:
            for number in range(40):
                await one.subscribe(QUERY, str(number), snapshot=False)
            await one.say(type="ping")
            while (await one.hear())["type"] != "pong":
                pass
            await until(lambda: hub.feeds and feed_of(running).ring.reader_count == 40)
            table.change("acme", (4, INSERT, None, 40))
            told = [await one.told() for _ in range(40)]
            assert {each["data"]["number"] for each in told} == {4}
            assert feed_of(running).read_count <= 4
            looks = hub.poll_count
        await until(lambda: not hub.feeds)
        looks = hub.poll_count
        await asyncio.sleep(4 * hub.poll_seconds)
        assert hub.poll_count == looks


async def test_what_is_refused_says_why(table):
    with serving(table.log, table.images.endpoint) as running:
        async with client(running) as one:
            wrong = [
                ("subscription { nothing { cursor } }", "GRAPHQL_VALIDATION_FAILED"),
                (f"subscription {{ {BIG} {{ data {{ gone }} }} }}", "GRAPHQL_VALIDATION_FAILED"),
                (
                    f'subscription {{ {BIG}(where: {{ts_timestamp: {{_gt: "1"}}}}) {{ cursor }} }}',
                    "GRAPHQL_VALIDATION_FAILED",
                ),
                (f'subscription {{ {BIG}(after: "x") {{ cursor }} }}', "POSITION_INVALID"),
                ("subscription {", "GRAPHQL_PARSE_FAILED"),
                ("subscription($a: Boolean!) { a: live_big { cursor @skip(if: $a) } }",
                 "BAD_USER_INPUT"),
            ]  # fmt: skip
            for number, (query, code) in enumerate(wrong):
                await one.subscribe(query, str(number))
                answer = await one.hear()
                assert (answer["type"], answer["id"]) == ("error", str(number))
                assert answer["payload"][0]["extensions"]["code"] == code, answer
            await one.subscribe("{ _tables }", "q")
            answer = await one.hear()
            assert answer == {
                "id": "q", "type": "next", "payload": {"data": {"_tables": [BIG]}},
            }  # fmt: skip
            assert (await one.hear())["type"] == "complete"


async def test_the_close_codes_reach_the_client(table):
    # Only a client that never sends its init meets this bound: on a busy machine others would.
    hasty = SocketBounds(init_seconds=0.3)
    with serving(table.log, table.images.endpoint, bounds=hasty) as running:
        async with client(running, init=False) as one:
            assert await one.closed() == (4408, "Connection initialisation timeout")
    bounds = SocketBounds(message_bytes=1_000, connections=2)
    with serving(table.log, table.images.endpoint, bounds=bounds) as running:
        async with client(running, init=False, subprotocols=["graphql-ws"]) as one:
            assert await one.closed() == (4406, "Subprotocol not acceptable")
        async with client(running) as one:
            await one.socket.send("x" * 2_000)
            assert (await one.closed())[0] == 1009
        async with client(running) as one, client(running) as _two:
            async with client(running, init=False) as three:
                assert (await three.closed())[0] == 1013
            await one.subscribe(QUERY, "a", snapshot=False)
            await one.subscribe(QUERY, "a", snapshot=False)
            assert await one.closed() == (4409, "Subscriber for a already exists")
        async with client(running) as one:
            running.server.should_exit = True
            assert (await one.closed())[0] == 1012


async def test_a_token_sees_its_tenants_and_its_withdrawal_ends_its_connections(table, tmp_path):
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({"of-acme": ["acme"], "of-both": ["acme", "globex"]}))

    access = FileAccess(tokens)
    bounds = SocketBounds(check_seconds=0.1)
    with serving(table.log, table.images.endpoint, access=access, bounds=bounds) as running:
        async with client(running, init=False) as one:
            await one.say(type="connection_init", payload={"token": "guessed"})
            assert await one.closed() == (4403, "Forbidden")
        header = {"Authorization": "Bearer of-acme"}
        async with (
            client(running, additional_headers=header) as one,
            client(running, payload={"Authorization": "Bearer of-both"}) as two,
        ):
            await one.subscribe(QUERY, snapshot=True)
            await two.subscribe(QUERY, snapshot=False)
            assert {(await one.told())["data"]["tenant"] for _ in range(3)} == {"acme"}
            await until(lambda: feed_of(running).ring.reader_count == 2)
            table.change("globex", (4, INSERT, None, 40))
            table.change("acme", (5, INSERT, None, 50))
            assert (await one.told())["data"]["number"] == 5
            assert {(await two.told())["data"]["number"] for _ in range(2)} == {4, 5}
            tokens.write_text(json.dumps({"of-both": ["globex", "acme"]}))
            assert await one.closed() == (4403, "The token was withdrawn")
            table.change("acme", (6, INSERT, None, 60))
            assert (await two.told())["data"]["number"] == 6


async def test_a_foreign_page_is_refused(table):
    with serving(table.log, table.images.endpoint) as running:
        with pytest.raises(Exception, match="403"):
            async with client(running, origin="https://evil.example"):
                pass
        # A name that a page has bound to this machine's address.
        rebound = connect(f"ws://evil.example{GRAPHQL_PATH}", host="127.0.0.1", port=running.port)
        with pytest.raises(Exception, match="403"):
            await rebound


@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        ({"entries": 16, "patience": 0.2}, SocketBounds()),
        ({}, SocketBounds(stuck_seconds=0.3, check_seconds=0.1)),
    ],
    ids=["the ring is full", "a message waits"],
)
async def test_a_client_that_does_not_read_is_told_where_to_go_on_and_the_others_hear_all(
    table, options, bounds
):
    many = " ".join(f"{'v' * 250}{number}: value" for number in range(900))
    long = f"subscription {{ {BIG} {{ cursor data {{ {many} }} }} }}"

    with serving(table.log, table.images.endpoint, bounds=bounds, **options) as running:
        async with client(running) as quick, client(running, max_queue=1) as slow:
            await quick.subscribe(f"subscription {{ {BIG}(snapshot: false) {{ cursor }} }}")
            await slow.subscribe(long)
            hub = running.live.hub
            await until(lambda: hub.feeds and feed_of(running).ring.reader_count == 2)
            heard, number = 0, 100
            while feed_of(running).ring.reader_count == 2:
                number += 20
                changes = [(number + each, INSERT, None, 1) for each in range(20)]
                table.change("acme", *changes)
                for _ in changes:
                    await quick.told()
                heard += len(changes)
            last = None
            while (message := await slow.hear())["type"] == "next":
                (told,) = message["payload"]["data"].values()
                last = told["cursor"]
            (error,) = message["payload"]
            assert error["extensions"] == {"code": "SUBSCRIBER_TOO_SLOW", "position": last}
            assert await slow.closed() == (1013, f"SUBSCRIBER_TOO_SLOW {last}")
        async with client(running) as again:
            await again.subscribe(QUERY, snapshot=False, after=last)
            first = (await again.told())["data"]["number"]
            assert 120 <= first < 120 + heard
