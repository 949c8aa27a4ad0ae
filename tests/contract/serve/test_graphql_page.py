"""docs/graphql.md: its examples answer as it says, and its tables and numbers are the code's."""

import asyncio
import json
import re

import pytest

from iscp_dagster.model.declared.images import ChangeKind
from iscp_dagster.serve.access import parse_tokens
from iscp_dagster.serve.columns import _SCALARS_BY_TYPE
from iscp_dagster.serve.graph.documents import DocumentLimits
from iscp_dagster.serve.live import errors
from iscp_dagster.serve.live.hub import POLL_SECONDS
from iscp_dagster.serve.live.ring import MOST_ENTRIES, PATIENCE_SECONDS
from iscp_dagster.serve.live.transport import protocol
from iscp_dagster.serve.live.transport.socket import SocketBounds
from iscp_dagster.serve.reads.caps import Caps
from iscp_dagster.serve.web.graphql_http import HttpBounds
from iscp_dagster.serve.where import MOST_TERMS
from support.clients.float_digits import approximate
from support.lake.shop_indexes import ask
from support.live.subscription_server import BIG, client
from support.live.view_history import until
from support.paths import DOCS

PAGE = (DOCS / "graphql.md").read_text(encoding="utf-8")
SUBSCRIPTIONS = PAGE.partition("## Subscriptions")[2].replace("shop_big_trades", BIG)
EXAMPLES = re.findall(r"```graphql\n(\{.*?)```\n\n```json\n(.*?)```", PAGE, re.DOTALL)
UPDATE = ChangeKind.UPDATE


def test_the_examples_answer_as_they_say(shop_client):
    assert len(EXAMPLES) >= 2
    for query, answer in EXAMPLES:
        assert ask(shop_client, query, "of-acme") == approximate(json.loads(answer)), query


@pytest.mark.parametrize("distance", [0, 1.1920929e-07, -1.1920929e-07])
def test_an_example_holds_whatever_the_processor_makes_of_a_distance_of_zero(distance):
    assert {"rows": [{"id": "1", "distance": distance}]} == approximate(
        {"rows": [{"id": "1", "distance": 0}]}
    )
    assert approximate({"distance": 0, "id": "1"}) != {"distance": 0.001, "id": "1"}


async def test_a_subscriber_gets_the_messages_of_the_example(table):
    ((query, messages),) = re.findall(
        r"```graphql\n(subscription.*?)```\n\n```json[^\n]*\n(.*?)```", SUBSCRIPTIONS, re.DOTALL
    )
    (code,) = re.findall(r'```python title="subscriber.py"\n(.*?)```', SUBSCRIPTIONS, re.DOTALL)
    with table.serve() as served:
        async with client(served) as subscriber:
            await subscriber.subscribe(query)
            received = [await subscriber.told() for _ in range(2)]
            table.change("acme", (1, UPDATE, 10, 25), (2, UPDATE, 20, 21), (3, UPDATE, 30, 5))
            received += [await subscriber.told() for _ in range(3)]
            cursors = [message.pop("cursor") for message in received]
        assert received == json.loads(messages)
        script, taken = {}, []
        exec(code, script)
        following = asyncio.create_task(
            script["follow"](f"ws://127.0.0.1:{served.port}/graphql", taken.append, cursors[2])
        )
        await until(lambda: len(taken) >= 2)
        assert [message["operation"] for message in taken[:2]] == ["UPDATE", "UPDATE"]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def test_the_file_of_tokens_is_one():
    (tokens,) = re.findall(r'```json title="tokens.json"\n(.*?)```', PAGE, re.DOTALL)
    assert len(parse_tokens(tokens, DOCS)) == 3


def test_the_table_of_types_has_the_scalars_of_the_code():
    rows = re.findall(r"^\| (`.*?) \| `(\w+)` \| ", PAGE, re.MULTILINE)
    for names, scalar in rows:
        for name in re.findall(r"`(\w+)`", names):
            assert scalar in {_SCALARS_BY_TYPE[name].name, "Bytes"}, name
    assert {scalar.name for scalar in _SCALARS_BY_TYPE.values()} <= {scalar for _, scalar in rows}


def test_the_numbers_are_those_of_the_code():
    bounds, shape, caps, sockets = HttpBounds(), DocumentLimits(), Caps(), SocketBounds()
    for phrase in (
        f"{bounds.body_bytes // 1024} KiB a request",
        f"{shape.tokens:,} tokens",
        f"{shape.depth} levels",
        f"{shape.fields:,} fields, {shape.roots} of them at the top",
        f"{MOST_TERMS:,} comparisons",
        f"{caps.rows:,} rows a field",
        f"{caps.skipped:,} rows skipped",
        f"{caps.cells:,} values and {caps.bytes // 1024**2} MiB of rows a request",
        f"{caps.introspection_fields:,} fields that",
        f"{caps.seconds} seconds a request",
        f"{bounds.max_running} requests at a time; {bounds.max_waiting:,} more",
        f"more wait for {bounds.wait_seconds:g} seconds",
        f"`limit` is {caps.default_rows} unless",
        f"every {POLL_SECONDS * 1000:.0f} ms",
        f"newest {MOST_ENTRIES:,} changes",
        {5.0: "wait five seconds"}[PATIENCE_SECONDS],
        f"{sockets.connections:,} connections",
        f"has {sockets.operations} operations",
        f"larger than {sockets.message_bytes // 1024} KiB",
        f"within {sockets.init_seconds:.0f} seconds",
        f"nothing for {sockets.stuck_seconds:.0f} seconds",
    ):
        assert phrase in PAGE, phrase


def test_the_codes_of_subscriptions_are_those_of_the_code():
    close_codes = {
        value
        for name, value in vars(protocol).items()
        if name.isupper() and isinstance(value, int) and value > 1_000
    }
    listed = re.findall(r"^\| (\d{4}) \|", SUBSCRIPTIONS, re.MULTILINE)
    assert {int(code) for code in listed} == close_codes
    names = {error.name for error in errors.SubscriptionError.__subclasses__()}
    listed = re.findall(r"^\| `([A-Z_]+)` \|", SUBSCRIPTIONS, re.MULTILINE)
    assert {*listed} == {*names, "TOO_MANY_SUBSCRIPTIONS"}
