"""The runtime of invocations as service consumers use it, over HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace

import httpx
import pytest

from durable_invocations import (
    Context,
    Service,
    TerminalError,
    VirtualObject,
    Workflow,
    service_app,
)
from iscp_dagster import ServiceConsumer, SourceTable
from iscp_dagster.model.errors import ConfigError, UnavailableError
from iscp_dagster.model.variables import INVOCATIONS_URL
from iscp_dagster.serviceconsumers import invoking
from iscp_dagster.serviceconsumers.consumer import InvokingConsumer
from iscp_dagster.serviceconsumers.errors import InvocationFailedError
from iscp_dagster.serviceconsumers.runtime_client import RuntimeClient, open_runtime
from iscp_dagster.serviceconsumers.runtime_protocol import InvocationUnsettledError
from runtime_support.endpoints.lying_runtimes import LIES, http, lied_to
from runtime_support.endpoints.scripted_service import Scripted
from support.errors import assert_names, raises_naming
from support.outbox.memory_runtime import retriever_of

DESKS = ("acme", "globex")
CHANGES = [(desk, id_, None, 2, False) for desk in DESKS for id_ in range(3)]
DONE: list[tuple[str, int]] = []
STATE = {"fails": "", "pauses": "", "recovers": ""}
FAILED, SEEN = threading.Event(), threading.Event()
"""The first attempt has failed; a poll has shown that."""
SECONDS = 20

trades, book, once = Service("Trades"), VirtualObject("Book"), Workflow("Once")


@trades.handler
async def booked(ctx: Context, batch: dict) -> int:
    if batch["tenant"] == STATE["fails"]:
        raise TerminalError("no such account", 422)
    if batch["tenant"] == STATE["pauses"]:
        raise RuntimeError("the ledger is locked")
    if batch["tenant"] == STATE["recovers"]:
        if not FAILED.is_set():
            FAILED.set()
            raise RuntimeError("the ledger is locked")
        await asyncio.to_thread(SEEN.wait, SECONDS)
    for row in batch["rows"]:
        await ctx.run("book", DONE.append, (batch["tenant"], row["id"]))
    return len(batch["rows"])


@book.handler
async def take(ctx: Context, batch: dict) -> str:
    await ctx.run("take", DONE.append, (ctx.key, batch["chunk"]))
    return ctx.key


@once.run
async def begin(ctx: Context, batch: dict) -> None:
    pass


@pytest.fixture(scope="module")
def endpoint(live):
    return live.serve(service_app(trades, book, once))


@pytest.fixture(autouse=True)
def _as_new():
    DONE.clear()
    STATE.update(fails="", pauses="", recovers="")
    FAILED.clear()
    SEEN.clear()


def consume(services, endpoint, tenants=DESKS, handler="Trades/booked", table_id="t", repairs=0):
    """Have a consumer take the changes of these tenants; return their retriever."""
    declared = ServiceConsumer(endpoint, handler=handler, rows=2)
    consumer = InvokingConsumer(
        source=SourceTable("shop.trades", key="id", tenant="desk", services=[declared]),
        declared=declared,
        table_id=table_id,
        generation=0,
        runtime=services,
        find_claim_error=lambda _: None,
        repairs=dict.fromkeys(DESKS, repairs),
    )
    retriever = retriever_of(CHANGES, tenants)
    consumer.consume(retriever)
    return retriever


def test_the_job_registers_the_endpoint_and_books_each_row_once(live, endpoint):
    for attached in (0, 2):
        services = RuntimeClient(live.client)
        retriever = consume(services, endpoint, table_id="first")
        assert not retriever.refused
        assert sorted(DONE) == [(desk, id_) for desk, id_, *_ in CHANGES]
        assert {each["attached"] for each in retriever.reports.values()} == {attached}
    invoked = retriever.reports["acme"]["invoked"][0]
    assert invoked["link"] == f"{live.url}/admin/invocations/{invoked['id']}"
    assert live.client.invocation(invoked["id"])["result"]["value"] == "2"


@pytest.mark.parametrize("output", [b"junk", b"[" * 100_000, b"\xff", b"", b"1" * 2_000_000])
def test_the_output_of_a_handler_is_not_parsed(live, output):
    async def script(stream, _):
        await stream.output(output)

    served = live.serve(Scripted(script))
    services = RuntimeClient(live.client)
    retriever = consume(services, served, handler="S/h", table_id=output.hex()[:9])
    assert not retriever.refused
    assert {each["invocations"] for each in retriever.reports.values()} == {2}


def test_a_virtual_object_has_the_tenant_as_key(live, endpoint):
    services = RuntimeClient(live.client)
    consume(services, endpoint, handler="Book/take")
    assert sorted(DONE) == [("acme", 0), ("acme", 1), ("globex", 0), ("globex", 1)]


def test_a_terminal_failure_is_permanent_until_a_repair_tries_it_anew(live, endpoint):
    STATE["fails"] = "globex"
    services = RuntimeClient(live.client)
    retriever = consume(services, endpoint, table_id="fails")
    error = retriever.refused.pop("globex")
    assert not retriever.refused
    assert (type(error), error.permanent) == (InvocationFailedError, True)
    assert_names(str(error), "Trades", 422, "no such account")
    assert sorted(DONE) == [("acme", 0), ("acme", 1), ("acme", 2)]
    STATE["fails"] = ""
    again = consume(services, endpoint, table_id="fails")
    assert str(again.refused["globex"]) == str(error)
    repaired = consume(services, endpoint, table_id="fails", repairs=1)
    assert not repaired.refused
    assert repaired.reports["acme"]["attached"] == 2
    assert sorted(DONE) == [(desk, id_) for desk, id_, *_ in CHANGES]


def test_looking_for_an_invocation_begins_none(live, endpoint):
    services, names = RuntimeClient(live.client), ("Book", "take")
    services.ensure_handler(endpoint, *names)
    assert not services.has_invocation(*names, key="acme", idempotency_key="asked")
    body = json.dumps({"tenant": "acme", "chunk": 0}).encode()
    sent = services.send(*names, body, key="acme", idempotency_key="asked")
    assert sent.is_new
    assert services.has_invocation(*names, key="acme", idempotency_key="asked")
    live.client.attach(sent.id, seconds=30)
    assert services.has_invocation(*names, key="acme", idempotency_key="asked")
    assert not services.has_invocation(*names, key="globex", idempotency_key="asked")
    wrong = services.send(*names, b"{}", key="acme", idempotency_key="wrong")
    live.client.cancel(wrong.id)
    live.client.kill(wrong.id)
    assert not services.has_invocation(*names, key="acme", idempotency_key="wrong")


def test_a_paused_invocation_is_temporary_and_attached_to_once_it_is_resumed(live, endpoint):
    STATE["pauses"] = "acme"
    services = RuntimeClient(live.client)
    retriever = consume(services, endpoint, ["acme"], table_id="pauses")
    error = retriever.refused["acme"]
    assert type(error) is InvocationUnsettledError
    (paused,) = live.client.invocations(status="paused")
    assert_names(str(error), paused["id"], "paused", 500, "the ledger is locked")
    STATE["pauses"] = ""
    live.client.resume(paused["id"])
    again = consume(services, endpoint, ["acme"], table_id="pauses")
    assert not again.refused
    assert (again.reports["acme"]["attached"], len(DONE)) == (1, 3)


class WatchingRuntime(RuntimeClient):
    """Has the handler's second attempt go on once a poll has shown that the first one failed."""

    def poll_invocation(self, invoked, seconds):
        state = super().poll_invocation(invoked, seconds)
        if state.failure and not state.ended:
            SEEN.set()
        return state


def test_an_invocation_that_succeeds_at_a_retry_has_not_failed(live, endpoint, monkeypatch):
    monkeypatch.setattr(invoking, "LOOK_SECONDS", 0.01)
    STATE["recovers"] = "acme"
    retriever = consume(WatchingRuntime(live.client), endpoint, ["acme"], table_id="tried again")
    assert SEEN.is_set(), "a poll came between two attempts"
    assert not retriever.refused
    assert [("acme", id_) for id_ in range(3)] == DONE


@pytest.mark.parametrize(
    ("handler", "value"), [("Trades/lost", "url="), ("Once/begin", "workflow")]
)
def test_an_unknown_handler_or_one_of_a_workflow_cannot_be_invoked(live, endpoint, handler, value):
    error = consume(RuntimeClient(live.client), endpoint, ["acme"], handler).refused["acme"]
    assert type(error) is ConfigError
    assert_names(str(error), handler, value)


def test_two_spellings_of_an_address_are_one_endpoint(live, endpoint):
    other = endpoint.replace("http://127.0.0.1", "http://LOCALHOST")
    for _ in range(2):
        assert RuntimeClient(live.client).ensure_handler(f"{other}/", "Trades", "booked") is False
    known = {each["uri"] for each in live.client.services() if each["name"] == "Trades"}
    assert known == {other.lower()}


def test_an_address_that_a_person_registered_later_stays_until_another_is_declared(live):
    declared, by_hand, next_one = (live.serve(service_app(trades)) for _ in range(3))

    def address():
        (uri,) = (each["uri"] for each in live.client.services() if each["name"] == "Trades")
        return uri

    def address_after_use(url):
        assert RuntimeClient(live.client).ensure_handler(url, "Trades", "booked") is False
        return address()

    assert address_after_use(declared) == declared
    live.client.register(by_hand, force=True)
    assert address_after_use(declared) == by_hand
    assert address_after_use(next_one) == next_one


def test_a_handler_that_the_runtime_forgot_is_registered_again_by_the_next_iteration(
    live, endpoint
):
    services = RuntimeClient(live.client)
    consume(services, endpoint, table_id="before")
    for each in live.client.deployments():
        httpx.delete(f"{live.url}/admin/deployments/{each['id']}?force=true", trust_env=False)
    forgotten = consume(services, endpoint, table_id="after")
    # Whichever tenant comes first; the other one may find it again already.
    (first, *_) = forgotten.refused.values()
    assert type(first) is InvocationUnsettledError
    assert_names(str(first), "Trades/booked")
    assert not any(error.permanent for error in forgotten.refused.values())
    again = consume(services, endpoint, table_id="after")
    assert not again.refused


def test_a_purged_invocation_is_invoked_anew_by_the_next_iteration(live, endpoint):
    services = RuntimeClient(live.client)
    assert services.ensure_handler(endpoint, "Trades", "booked") is False
    body = json.dumps({"tenant": "acme", "rows": []}).encode()
    sent = services.send("Trades", "booked", body, key=None, idempotency_key="k")
    state = services.poll_invocation(sent, 20)
    assert (state.ended, state.failed) == (True, False)
    live.client.purge(sent.id)
    with raises_naming(InvocationUnsettledError, sent.id):
        services.poll_invocation(sent, 0)
    assert replace(sent, status="x").is_new


def test_a_runtime_that_is_down_is_a_temporary_failure():
    services = open_runtime("http://127.0.0.1:9")
    assert services is open_runtime("http://127.0.0.1:9")
    retriever = consume(services, "http://127.0.0.1:8")
    assert {type(error) for error in retriever.refused.values()} == {UnavailableError}
    assert_names(str(retriever.refused["acme"]), "http://127.0.0.1:9", INVOCATIONS_URL)


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_no_runtime_gives_is_reported(lie):
    with (
        lied_to(http(LIES[lie])) as client,
        raises_naming(UnavailableError, client.url, "proxy"),
    ):
        RuntimeClient(client).ensure_handler("http://127.0.0.1:1", "A", "b")
