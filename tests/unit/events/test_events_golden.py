"""The examples of golden/events.txt, from the design note."""

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
from iscp_dagster.serve.live.messages import ChangeFilter
from iscp_dagster.serve.where import parse_where
from support.paths import GOLDEN

TABLE = GOLDEN / "events.txt"


def read_sections():
    """Return the file's blocks by title, each a list of lines without their indentation."""
    kept = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    blocks = [block.splitlines() for block in "\n".join(kept).strip().split("\n\n")]
    return {title: [line.strip() for line in lines] for title, *lines in blocks}


def read_table(title):
    return [re.split(r" {2,}", line) for line in read_sections()[title][1:]]


def make_images(line, version):
    """Return image rows of `operation id symbol quantity[ -> quantity] match` at the version."""
    kind, key, symbol, quantities, at = line
    before, _, after = quantities.rpartition(" -> ")
    number, sides, images = {
        "INSERT": (1, [1], [after]),
        "UPDATE": (2, [0, 1], [before, after]),
        "DELETE": (3, [0], [after]),
    }[kind]
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


def read_changes():
    lines = enumerate(read_table("changes"), 1)
    rows = [row for version, line in lines for row in make_images(line, version)]
    return pair_images(rows, keys=["trade_id"], tenant=None)


@pytest.mark.parametrize("line", read_table("ids"), ids=lambda line: line[-1])
def test_an_id_is_as_the_table_says(line):
    scheme_text, trigger, key, at, expected = line
    scheme = IdScheme.parse("" if scheme_text == "default" else scheme_text)
    tenant, *values = json.loads(key) if key.startswith("[") else (None, key)
    timestamp = SourceTimestamp(nanos=int(at), version=1)
    assert scheme.make_event_id(trigger, make_event_key(tenant, values), timestamp) == expected


def test_the_changes_of_trades_become_the_bodies_of_the_table():
    """Source, view, trigger, webhook: the timestamp stays beside the row."""
    trigger, recorded = "large_trade_alert", datetime.fromisoformat("2024-01-15T10:44:54.112+00:00")
    bodies = [
        TriggerEvent(
            event_id=IdScheme().make_event_id(trigger, each.change.key, each.timestamp),
            event_type=each.type,
            trigger_name=trigger,
            timestamp=recorded,
            source_timestamp=each.timestamp,
            data=each.change.row,
        ).encode_body()
        for each in TriggerMachine(Hysteresis()).apply_changes(read_changes())
    ]
    assert [body.decode() for body in bodies] == read_sections()["bodies"]


def test_the_messages_of_a_subscription_are_those_of_the_table():
    """As `trades(where: {symbol: {_eq: "AAPL"}})`; the timestamp is beside the data."""
    columns = {"symbol": build_column("symbol", parse_type("String"))}
    apple = ChangeFilter(where=parse_where(columns, {"symbol": {"_eq": "AAPL"}}))
    messages = [
        {
            "operation": message.operation,
            "data": dict(message.data or {}),
            "fields": message.fields,
            "ts_timestamp": message.ts_timestamp,
        }
        for change in read_changes()
        if (message := apple.build_message(change, ""))
    ]
    lines = [json.dumps(message, separators=(",", ":")) for message in messages]
    assert lines == read_sections()["messages"]


def test_a_receiver_answers_as_the_trace_says():
    deduplicator = Deduplicator(MemoryStore())
    trace = []
    for event, outcome, _ in read_table("receiver"):
        answer = "to be sent again"
        with suppress(ZeroDivisionError), deduplicator.claim(event) as claim:
            assert claim.duplicate or 1 / (outcome == "succeeds")
            answer = "already processed" if claim.duplicate else "processed"
        trace.append([event, outcome, answer])
    assert trace == read_table("receiver")


def test_a_subscriber_takes_the_changes_that_the_trace_says():
    newest, trace = NewestPositions(), []
    for line in read_table("subscriber"):
        if line[0] == "snapshot":
            newest.reset()
            trace.append(line)
            continue
        key, at, _ = line
        trace.append([key, at, "taken" if newest.accept(key, at) else "duplicate"])
    assert trace == read_table("subscriber")
