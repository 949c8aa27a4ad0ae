"""What docs/graphql.md says of subscriptions: its examples, its numbers, its codes."""

import asyncio
import json
import re

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.model.declared.images import ChangeKind
from iscp_dagster.serve.live import errors
from iscp_dagster.serve.live.hub import POLL_SECONDS
from iscp_dagster.serve.live.ring import MOST_ENTRIES, PATIENCE_SECONDS
from iscp_dagster.serve.live.transport import protocol
from iscp_dagster.serve.live.transport.socket import SocketBounds
from support.live.changes_index import ImageTable, reach, register
from support.live.subscription_server import BIG, client, serving
from support.live.view_history import until
from support.paths import DOCS

PAGE = (DOCS / "graphql.md").read_text(encoding="utf-8").replace("shop_big_trades", BIG)
PART = PAGE.partition("## Subscriptions")[2]


async def test_the_examples_are_told_as_they_say(clickhouse_url, log):
    ((query, told),) = re.findall(
        r"```graphql\n(subscription.*?)```\n\n```json[^\n]*\n(.*?)```", PART, re.DOTALL
    )
    (code,) = re.findall(r'```python title="subscriber.py"\n(.*?)```', PART, re.DOTALL)
    images = ImageTable(Endpoint.parse(clickhouse_url), "live")
    register(log, "acme")
    images.begin("acme", 10, [(key, key * 10) for key in (1, 2, 3)])
    reach(log, 10, "acme")
    updates = [(1, 10, 25), (2, 20, 21), (3, 30, 5)]

    with serving(log, images.endpoint) as running:
        async with client(running) as one:
            await one.subscribe(query)
            found = [await one.told() for _ in range(2)]
            changes = [
                (11, place, key, ChangeKind.UPDATE, before, after)
                for place, (key, before, after) in enumerate(updates)
            ]
            images.write("acme", changes)
            reach(log, 11, "acme")
            found += [await one.told() for _ in range(3)]
            cursors = [each.pop("cursor") for each in found]
        assert found == json.loads(told)
        script, heard = {}, []
        exec(code, script)
        following = asyncio.create_task(
            script["follow"](f"ws://127.0.0.1:{running.port}/graphql", heard.append, cursors[2])
        )
        await until(lambda: len(heard) >= 2)
        assert [each["operation"] for each in heard[:2]] == ["UPDATE", "UPDATE"]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def test_the_numbers_are_those_of_the_code():
    bounds = SocketBounds()
    for said in (
        f"every {POLL_SECONDS * 1000:.0f} ms",
        f"newest {MOST_ENTRIES:,} changes",
        {5.0: "wait five seconds"}[PATIENCE_SECONDS],
        f"{bounds.connections:,} connections",
        f"has {bounds.operations} operations",
        f"larger than {bounds.message_bytes // 1024} KiB",
        f"within {bounds.init_seconds:.0f} seconds",
        f"nothing for {bounds.stuck_seconds:.0f} seconds",
    ):
        assert said in PART, said


def test_the_codes_are_those_of_the_code():
    closed = {
        value
        for name, value in vars(protocol).items()
        if name.isupper() and isinstance(value, int) and value > 1_000
    }
    assert {int(each) for each in re.findall(r"^\| (\d{4}) \|", PART, re.MULTILINE)} == closed
    told = {each.name for each in errors.SubscriptionError.__subclasses__()}
    assert {*re.findall(r"^\| `([A-Z_]+)` \|", PART, re.MULTILINE)} == {
        *told,
        "TOO_MANY_SUBSCRIPTIONS",
    }
