"""Subscriptions through real websockets, over ClickHouse and an ISCP log in SQLite."""

import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from iscp_dagster.model.declared.images import ChangeKind
from iscp_dagster.serve.access import FileAccess
from iscp_dagster.serve.live.transport.socket import SocketBounds
from iscp_dagster.serve.web.app import GRAPHQL_PATH
from support.live.subscription_server import BIG, client
from support.live.view_history import until

QUERY = f"""subscription($where: {BIG}_bool_exp, $after: String, $snapshot: Boolean!) {{
  told: {BIG}(where: $where, after: $after, snapshot: $snapshot) {{
    operation ...rest cursor
  }}
}}
fragment rest on {BIG}_change {{ data {{ __typename number: id value tenant }} }}"""
INSERT, UPDATE, DELETE = ChangeKind.INSERT, ChangeKind.UPDATE, ChangeKind.DELETE


def feed_of(served):
    (feed,) = served.live.hub.feeds.values()
    return feed


async def await_readers(served, number):
    await until(lambda: served.live.hub.feeds and feed_of(served).ring.reader_count == number)


async def close_code(subscriber):
    code, _ = await subscriber.closed()
    return code


async def test_a_subscriber_resumes_from_any_cursor_of_the_snapshot_and_of_the_changes(table):
    first_two = {"id": {"_lte": 2}}
    with table.serve() as served:
        async with client(served) as subscriber:
            await subscriber.subscribe(QUERY, snapshot=True, where=first_two)
            rows = [await subscriber.told() for _ in range(4)]
            numbers = [(row["data"]["tenant"], row["data"]["number"]) for row in rows]
            assert numbers == [("acme", 1), ("acme", 2), ("globex", 1), ("globex", 2)]
            types = {(row["operation"], row["data"]["__typename"]) for row in rows}
            assert types == {("INSERT", BIG)}
            table.change("acme", (1, UPDATE, 10, 11), (3, UPDATE, 30, 31), (2, DELETE, 20, None))
            changes = [await subscriber.told() for _ in range(2)]
            values = [(change["operation"], change["data"]["value"]) for change in changes]
            assert values == [("UPDATE", 11), ("DELETE", 20)]
            await subscriber.say(type="complete", id="1")
            await subscriber.subscribe(QUERY, "2", snapshot=False, after=changes[0]["cursor"])
            assert (await subscriber.told())["data"]["number"] == 3
            assert (await subscriber.told())["operation"] == "DELETE"
        async with client(served) as other:
            # Within the snapshot, after its second row.
            cursor = rows[1]["cursor"]
            await other.subscribe(QUERY, snapshot=True, after=cursor, where=first_two)
            messages = [await other.told() for _ in range(4)]
            assert messages[:2] == rows[2:]
            assert [message["operation"] for message in messages[2:]] == ["UPDATE", "DELETE"]


async def test_subscriptions_of_a_connection_share_one_reading_and_end_with_it(table):
    with table.serve() as served:
        async with client(served) as subscriber:
            for number in range(40):
                await subscriber.subscribe(QUERY, str(number), snapshot=False)
            await await_readers(served, 40)
            table.change("acme", (4, INSERT, None, 40))
            messages = [await subscriber.told() for _ in range(40)]
            assert {message["data"]["number"] for message in messages} == {4}
            assert feed_of(served).read_count <= 4
        await until(lambda: not served.live.hub.feeds)


REFUSED = [
    ("subscription { nothing { cursor } }", "GRAPHQL_VALIDATION_FAILED"),
    (f"subscription {{ {BIG} {{ data {{ gone }} }} }}", "GRAPHQL_VALIDATION_FAILED"),
    (
        f'subscription {{ {BIG}(where: {{ts_timestamp: {{_gt: "1"}}}}) {{ cursor }} }}',
        "GRAPHQL_VALIDATION_FAILED",
    ),
    (f'subscription {{ {BIG}(after: "x") {{ cursor }} }}', "POSITION_INVALID"),
    ("subscription {", "GRAPHQL_PARSE_FAILED"),
    ("subscription($a: Boolean!) { a: live_big { cursor @skip(if: $a) } }", "BAD_USER_INPUT"),
]


async def test_a_refused_operation_has_a_code_and_leaves_its_connection_to_others(table):
    with table.serve() as served:
        async with client(served) as subscriber:
            for number, (query, code) in enumerate(REFUSED):
                await subscriber.subscribe(query, str(number))
                answer = await subscriber.hear()
                assert (answer["type"], answer["id"]) == ("error", str(number))
                assert answer["payload"][0]["extensions"]["code"] == code, answer
            await subscriber.subscribe("{ _tables }", "q")
            answer = await subscriber.hear()
            assert answer == {"id": "q", "type": "next", "payload": {"data": {"_tables": [BIG]}}}
            assert (await subscriber.hear())["type"] == "complete"


async def test_the_close_codes_reach_the_client(table):
    # Only a client that never sends its init meets this bound: on a busy machine others would.
    with table.serve(bounds=SocketBounds(init_seconds=0.3)) as served:
        async with client(served, init=False) as silent:
            assert await close_code(silent) == 4408
    bounds = SocketBounds(message_bytes=1_000, connections=2)
    with table.serve(bounds=bounds) as served:
        async with client(served, init=False, subprotocols=["graphql-ws"]) as other_protocol:
            assert await close_code(other_protocol) == 4406
        async with client(served) as verbose:
            await verbose.socket.send("x" * 2_000)
            assert await close_code(verbose) == 1009
        await until(lambda: not served.sockets.connections)
        async with client(served) as subscriber, client(served) as _second:
            async with client(served, init=False) as third:
                assert await close_code(third) == 1013
            await subscriber.subscribe(QUERY, "a", snapshot=False)
            await subscriber.subscribe(QUERY, "a", snapshot=False)
            assert await close_code(subscriber) == 4409
        await until(lambda: not served.sockets.connections)
        async with client(served) as last:
            served.server.should_exit = True
            assert await close_code(last) == 1012


async def test_a_token_sees_its_tenants_and_its_withdrawal_ends_its_connections(table, tmp_path):
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({"of-acme": ["acme"], "of-both": ["acme", "globex"]}))
    bounds = SocketBounds(check_seconds=0.1)
    with table.serve(access=FileAccess(tokens), bounds=bounds) as served:
        async with client(served, init=False) as guesser:
            await guesser.say(type="connection_init", payload={"token": "guessed"})
            assert await close_code(guesser) == 4403
        header = {"Authorization": "Bearer of-acme"}
        async with (
            client(served, additional_headers=header) as of_acme,
            client(served, payload={"Authorization": "Bearer of-both"}) as of_both,
        ):
            await of_acme.subscribe(QUERY, snapshot=True)
            await of_both.subscribe(QUERY, snapshot=False)
            assert {(await of_acme.told())["data"]["tenant"] for _ in range(3)} == {"acme"}
            await await_readers(served, 2)
            table.change("globex", (4, INSERT, None, 40))
            table.change("acme", (5, INSERT, None, 50))
            assert (await of_acme.told())["data"]["number"] == 5
            assert {(await of_both.told())["data"]["number"] for _ in range(2)} == {4, 5}
            tokens.write_text(json.dumps({"of-both": ["globex", "acme"]}))
            assert await close_code(of_acme) == 4403
            table.change("acme", (6, INSERT, None, 60))
            assert (await of_both.told())["data"]["number"] == 6


async def test_a_foreign_page_is_refused(table):
    with table.serve() as served:
        with pytest.raises(InvalidStatus) as foreign:
            async with client(served, origin="https://evil.example"):
                pass
        # A name that a page has bound to this machine's address.
        with pytest.raises(InvalidStatus) as rebound:
            await connect(f"ws://evil.example{GRAPHQL_PATH}", host="127.0.0.1", port=served.port)
    for refused in (foreign, rebound):
        assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        ({"entries": 16, "patience": 0.2}, SocketBounds()),
        ({}, SocketBounds(stuck_seconds=0.3, check_seconds=0.1)),
    ],
    ids=["the ring is full", "a message waits"],
)
async def test_a_client_that_does_not_read_gets_its_position_and_the_others_get_every_change(
    table, options, bounds
):
    many = " ".join(f"{'v' * 250}{number}: value" for number in range(900))
    long = f"subscription {{ {BIG} {{ cursor data {{ {many} }} }} }}"

    with table.serve(bounds=bounds, **options) as served:
        async with client(served) as quick, client(served, max_queue=1) as slow:
            await quick.subscribe(f"subscription {{ {BIG}(snapshot: false) {{ cursor }} }}")
            await slow.subscribe(long)
            await await_readers(served, 2)
            number = 100
            while feed_of(served).ring.reader_count == 2:
                number += 20
                table.change("acme", *((number + more, INSERT, None, 1) for more in range(20)))
                for _ in range(20):
                    await quick.told()
            last = None
            while (message := await slow.hear())["type"] == "next":
                (change,) = message["payload"]["data"].values()
                last = change["cursor"]
            (error,) = message["payload"]
            assert error["extensions"] == {"code": "SUBSCRIBER_TOO_SLOW", "position": last}
            assert await slow.closed() == (1013, f"SUBSCRIBER_TOO_SLOW {last}")
        async with client(served) as resumed:
            await resumed.subscribe(QUERY, snapshot=False, after=last)
            assert 120 <= (await resumed.told())["data"]["number"] < number + 20
