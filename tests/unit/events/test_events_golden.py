"""The design note's examples, as golden/events.txt has them."""

import json
import re
from contextlib import suppress
from datetime import datetime

import pytest

from idempotent_receiver import Deduplicator, MemoryStore, NewestPositions
from iscp_dagster.clickhouse.types.type_parser import parse_type
from iscp_dagster.events.changes import pair_images
from iscp_dagster.events.hysteresis import Hysteresis, TriggerMachine
from iscp_dagster.events.ids import IdScheme
from iscp_dagster.events.keys import make_event_key
from iscp_dagster.events.payload import TriggerEvent
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.serve.columns import build_column
from iscp_dagster.serve.live.row_changes import ChangeFilter
from iscp_dagster.serve.where import parse_where
from support.paths import GOLDEN

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
    assert scheme.make_event_id(trigger, make_event_key(tenant, values), timestamp) == expected


def test_the_way_of_a_trade_ends_in_the_bodies_of_the_table():
    """Source, view, trigger, webhook: the timestamp stays beside the row."""
    rows = [row for n, line in enumerate(words("changes"), 1) for row in trade(line, n)]
    stream = pair_images(rows, keys=["trade_id"], tenant=None)
    recorded = datetime.fromisoformat("2024-01-15T10:44:54.112+00:00")
    bodies = [
        TriggerEvent(
            event_id=IdScheme().make_event_id("large_trade_alert", each.change.key, each.timestamp),
            event_type=each.type,
            trigger_name="large_trade_alert",
            timestamp=recorded,
            source_timestamp=each.timestamp,
            data=each.change.row,
        ).encode_body()
        for each in TriggerMachine(Hysteresis()).apply_changes(stream)
    ]
    assert [body.decode() for body in bodies] == sections()["bodies"]


def test_a_subscription_tells_what_the_table_says():
    """As `trades(where: {symbol: {_eq: "AAPL"}})`; the timestamp is beside the data."""
    rows = [row for n, line in enumerate(words("changes"), 1) for row in trade(line, n)]
    columns = {"symbol": build_column("symbol", parse_type("String"))}
    wanted = ChangeFilter(where=parse_where(columns, {"symbol": {"_eq": "AAPL"}}))
    told = [
        wanted.build_message(each, "") for each in pair_images(rows, keys=["trade_id"], tenant=None)
    ]
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
    newest, found = NewestPositions(), []
    for line in words("subscriber"):
        if line[0] == "snapshot":
            newest.reset()
            found.append(line)
            continue
        key, at, _ = line
        found.append([key, at, "taken" if newest.accept(key, at) else "duplicate"])
    assert found == words("subscriber")
