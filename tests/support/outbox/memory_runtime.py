"""A runtime of invocations in memory, and a retriever of rows in any batches, for tests."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from iscp_dagster import ServiceConsumer, SourceTable
from iscp_dagster.model.batch import Range
from iscp_dagster.model.consumers.protocol import DataType
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.moment import Moment
from iscp_dagster.serviceconsumers.consumer import InvokingConsumer
from iscp_dagster.serviceconsumers.runtime_protocol import ENDED, InvocationState
from iscp_dagster.sync.executors.retriever import ConsumerScan, Retriever

SCHEMA = pa.schema(
    [
        ("desk", pa.string()),
        ("id", pa.int64()),
        ("amount", pa.decimal128(20, 2)),
        ("_version", pa.int64()),
        ("_timestamp", pa.int64()),
        ("_deleted", pa.bool_()),
    ]
)


@dataclass
class FakeRuntime:
    """Invokes at once: `handler` gets the body, and returns a failure, "paused", or nothing."""

    handler: Callable[[dict[str, Any]], str | None] = lambda _: None
    keyed_by_tenant: bool = False
    down: bool = False
    invoked: dict[str, InvocationState] = field(default_factory=dict)
    """By idempotency key."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Of the invocations, in their order."""
    keys: list[str | None] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ensure_handler(self, url, service, handler):
        self._check_up()
        return self.keyed_by_tenant

    def send(self, service, handler, body, *, key, idempotency_key):
        self._check_up()
        with self._lock:
            if (earlier := self.invoked.get(idempotency_key)) is not None:
                return replace(earlier, is_new=False, status="accepted", failure="")
            self.bodies.append(json.loads(body))
            self.keys.append(key)
            outcome = self.handler(self.bodies[-1])
            id_ = f"inv_{len(self.invoked)}"
            invocation = InvocationState(
                id=id_,
                status="paused" if outcome == "paused" else ENDED,
                link=f"http://here/{id_}",
                failure="" if outcome in {None, "paused"} else outcome,
            )
            self.invoked[idempotency_key] = invocation
            return replace(invocation, status="accepted", failure="")

    def has_invocation(self, service, handler, *, key, idempotency_key):
        self._check_up()
        invocation = self.invoked.get(idempotency_key)
        return invocation is not None and not invocation.failed

    def end(self, id_: str, failure: str = "") -> None:
        """End an invocation while nobody waits for it."""
        for name, each in self.invoked.items():
            if each.id == id_:
                self.invoked[name] = replace(each, status=ENDED, failure=failure)

    def poll_invocation(self, invoked, seconds):
        self._check_up()
        return next(each for each in self.invoked.values() if each.id == invoked.id)

    def _check_up(self):
        if self.down:
            raise UnavailableError("The runtime does not answer.")


def declare_consumer(**options: Any) -> ServiceConsumer:
    options = {"handler": "Trades/booked", "name": "booked", "rows": 2} | options
    return ServiceConsumer("http://127.0.0.1:9080", **options)


def declare_trades(consumer: ServiceConsumer) -> SourceTable:
    return SourceTable("shop.trades", key="id", tenant="desk", services=[consumer])


def make_consumer(
    runtime: FakeRuntime, declared: ServiceConsumer | None = None, **changes: Any
) -> InvokingConsumer:
    """Return a consumer that never loses a job, unless `changes` say otherwise."""
    declared = declared or declare_consumer()
    fields = {
        "source": declare_trades(declared),
        "declared": declared,
        "table_id": "t",
        "generation": 0,
        "runtime": runtime,
        "find_claim_error": lambda _: None,
    }
    return InvokingConsumer(**(fields | changes))


def rows_of(changes: Sequence[tuple[str, int, Any, int, bool]]) -> pa.Table:
    """Return the scan's rows of (desk, id, amount, version, whether deleted)."""
    whole = [
        (desk, id_, amount, version, version * 1_000, gone)
        for desk, id_, amount, version, gone in changes
    ]
    rows = [dict(zip(SCHEMA.names, each, strict=True)) for each in whole]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def retriever_of(
    changes: Sequence[tuple[str, int, Any, int, bool]],
    tenants: Sequence[str],
    *,
    span: tuple[int, int] = (1, 5),
    snapshot: bool = False,
    dice: random.Random | None = None,
) -> Retriever:
    """Return a retriever whose batches have the rows in an order and sizes of the `dice`."""
    rows = list(changes)
    if dice is not None:
        dice.shuffle(rows)
    share = ConsumerScan(
        job=JobID(db="shop", table="trades", job="booked"),
        registrations=dict.fromkeys(tenants, 7),
        range=Range(from_=Moment(span[0]), to=Moment(span[1])),
        data_type=DataType.SNAPSHOT if snapshot else DataType.TAIL,
        columns=("desk", "id", "amount"),
        delete_columns=("desk", "id"),
        tenant_column="desk",
        others=True,
    )
    retriever = Retriever(scan=share)
    retriever.messages.maxsize = 0
    while rows:
        size = len(rows) if dice is None else dice.randint(1, len(rows))
        retriever.messages.put(rows_of(rows[:size]))
        rows = rows[size:]
    retriever.messages.put(None)
    return retriever
