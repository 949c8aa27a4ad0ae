"""The design note's examples, as golden/events.txt has them."""

import json
import re
from contextlib import suppress
from datetime import datetime

import pytest
from places import GOLDEN

from idempotent_receiver import Deduplicator, MemoryStore, Newest
from iscp_dagster.clickhouse.types.typetext import parsed
from iscp_dagster.events.changes import changes_of
from iscp_dagster.events.hysteresis import Condition, Machine
from iscp_dagster.events.ids import IdScheme
from iscp_dagster.events.keys import event_key
from iscp_dagster.events.payload import Event
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.serve.columns import column
from iscp_dagster.serve.live.telling import Wanted
from iscp_dagster.serve.where import parse

TABLE = GOLDEN / "events.txt"


def sections():
    """Return the file's blocks by title, each a list of lines without their indentation."""
    kept = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    blocks = [block.splitlines() for block in "\n".join(kept).strip().split("\n\n")]
    return {title: [line.strip() for line in lines] for title, *lines in blocks}


def words(title):
    return [re.split(r" {2,}", line) for line in sections()[title][1:]]


def trade(line, version):
    """Return image rows of `operation id symbol quantity[ -> quantity] match` at the version."""
    kind, key, symbol, quantities, at = line
    before, _, after = quantities.rpartition(" -> ")
    images = {"INSERT": [after], "UPDATE": [before, after], "DELETE": [after]}[kind]
    number = {"INSERT": 1, "UPDATE": 2, "DELETE": 3}[kind]
    sides = {"INSERT": [1], "UPDATE": [0, 1], "DELETE": [0]}[kind]
    return [
        {
            "trade_id": int(key),
            "symbol": symbol,
            "quantity": int(quantity),
            "_change": number,
            "_image": side,
            "_fields": ["quantity"] if kind == "UPDATE" else [],
            "_match": int(quantity) > 10_000,
            "_version": version,
            "_ordinal": 0,
            "_timestamp": int(at) // 1_000,
        }
        for quantity, side in zip(images, sides, strict=True)
    ]


@pytest.mark.parametrize("line", words("ids"), ids=lambda line: line[-1])
def test_an_id_is_as_the_table_says(line):
    said, trigger, key, at, expected = line
    scheme = IdScheme.parse("" if said == "default" else said)
    tenant, *values = json.loads(key) if key.startswith("[") else (None, key)
    timestamp = SourceTimestamp(nanos=int(at), version=1)
    assert scheme.event_id(trigger, event_key(tenant, values), timestamp) == expected


def test_the_way_of_a_trade_ends_in_the_bodies_of_the_table():
    """Source, view, trigger, webhook: the timestamp stays beside the row."""
    rows = [row for n, line in enumerate(words("changes"), 1) for row in trade(line, n)]
    stream = changes_of(rows, keys=["trade_id"], tenant=None)
    recorded = datetime.fromisoformat("2024-01-15T10:44:54.112+00:00")
    bodies = [
        Event(
            event_id=IdScheme().event_id("large_trade_alert", each.change.key, each.timestamp),
            event_type=each.type,
            trigger_name="large_trade_alert",
            timestamp=recorded,
            source_timestamp=each.timestamp,
            data=each.change.row,
        ).body()
        for each in Machine(Condition()).take(stream)
    ]
    assert [body.decode() for body in bodies] == sections()["bodies"]


def test_a_subscription_tells_what_the_table_says():
    """As `trades(where: {symbol: {_eq: "AAPL"}})`; the timestamp is beside the data."""
    rows = [row for n, line in enumerate(words("changes"), 1) for row in trade(line, n)]
    columns = {"symbol": column("symbol", parsed("String"))}
    wanted = Wanted(where=parse(columns, {"symbol": {"_eq": "AAPL"}}))
    told = [wanted.told(each, "") for each in changes_of(rows, keys=["trade_id"], tenant=None)]
    messages = [
        {
            "operation": each.operation,
            "data": dict(each.data or {}),
            "fields": each.fields,
            "ts_timestamp": each.ts_timestamp,
        }
        for each in told
        if each
    ]
    found = [json.dumps(each, separators=(",", ":")) for each in messages]
    assert found == sections()["messages"]


def test_a_receiver_answers_as_the_trace_says():
    deduplicator = Deduplicator(MemoryStore())
    found = []
    for event, outcome, _ in words("receiver"):
        told = "to be sent again"
        with suppress(ZeroDivisionError), deduplicator.claim(event) as claim:
            assert claim.duplicate or 1 / (outcome == "succeeds")
            told = "already processed" if claim.duplicate else "processed"
        found.append([event, outcome, told])
    assert found == words("receiver")


def test_a_subscriber_takes_what_the_trace_says():
    newest, found = Newest(), []
    for line in words("subscriber"):
        if line[0] == "snapshot":
            newest.reset()
            found.append(line)
            continue
        key, at, _ = line
        found.append([key, at, "taken" if newest.takes(key, at) else "duplicate"])
    assert found == words("subscriber")
