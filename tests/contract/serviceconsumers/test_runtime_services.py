"""The runtime of invocations as service consumers use it, over HTTP."""

from __future__ import annotations

import json
import re
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
from iscp_dagster.serviceconsumers import invoking
from iscp_dagster.serviceconsumers.consumer import InvokingConsumer
from iscp_dagster.serviceconsumers.errors import InvocationFailedError
from iscp_dagster.serviceconsumers.runtime import RuntimeClient, open_runtime
from iscp_dagster.serviceconsumers.services import InvocationGoingError
from runtime_support.endpoints.scripted_service import Scripted
from runtime_support.runtimes.live_runtime import running
from support.outbox.memory_runtime import retriever_of

DESKS = ("acme", "globex")
CHANGES = [(desk, id_, None, 2, False) for desk in DESKS for id_ in range(3)]
DONE: list[tuple[str, int]] = []
STATE = {"fails": "", "pauses": ""}

trades, book, once = Service("Trades"), VirtualObject("Book"), Workflow("Once")


@trades.handler
async def booked(ctx: Context, batch: dict) -> int:
    if batch["tenant"] == STATE["fails"]:
        raise TerminalError("no such account", 422)
    if batch["tenant"] == STATE["pauses"]:
        raise RuntimeError("the ledger is locked")
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
def live(tmp_path_factory):
    with running(tmp_path_factory.mktemp("runtime")) as found:
        yield found


@pytest.fixture(scope="module")
def endpoint(live):
    return live.serve(service_app(trades, book, once))


@pytest.fixture(autouse=True)
def _as_new():
    DONE.clear()
    STATE.update(fails="", pauses="")


def consumer(services, endpoint, handler="Trades/booked", table_id="t", repairs=0, **options):
    made = ServiceConsumer(endpoint, handler=handler, rows=2, **options)
    return InvokingConsumer(
        source=SourceTable("shop.trades", key="id", tenant="desk", services=[made]),
        declared=made,
        table_id=table_id,
        generation=0,
        services=services,
        lost=lambda _: None,
        repairs=dict.fromkeys(DESKS, repairs),
    )


def consumed(services, endpoint, tenants=DESKS, **options):
    """Have a consumer take the changes of these tenants; return the retriever that gave them."""
    retriever = retriever_of(CHANGES, tenants)
    consumer(services, endpoint, **options).consume(retriever)
    return retriever


def test_the_job_registers_the_endpoint_and_each_row_is_booked_once(live, endpoint):
    for attached in (0, 2):
        services = RuntimeClient(live.client)
        retriever = consumed(services, endpoint, table_id="first")
        assert not retriever.refused
        assert sorted(DONE) == [(desk, id_) for desk, id_, *_ in CHANGES]
        assert {each["attached"] for each in retriever.reports.values()} == {attached}
    link = retriever.reports["acme"]["invoked"][0]["link"]
    id_ = retriever.reports["acme"]["invoked"][0]["id"]
    assert link == f"{live.url}/admin/invocations/{id_}"
    assert live.client.invocation(id_)["result"]["value"] == "2"


@pytest.mark.parametrize("output", [b"junk", b"[" * 100_000, b"\xff", b"", b"1" * 2_000_000])
def test_what_a_handler_returns_is_not_looked_at(live, output):
    """Not even where it says that it is JSON, and is none."""

    async def script(stream, _):
        await stream.output(output)

    served = live.serve(Scripted(script))
    services = RuntimeClient(live.client)
    retriever = consumed(services, served, handler="S/h", table_id=output.hex()[:9])
    assert not retriever.refused
    assert {each["invocations"] for each in retriever.reports.values()} == {2}


def test_a_virtual_object_has_the_tenant_as_key(live, endpoint):
    services = RuntimeClient(live.client)
    consumed(services, endpoint, handler="Book/take")
    assert sorted(DONE) == [("acme", 0), ("acme", 1), ("globex", 0), ("globex", 1)]


def test_a_terminal_failure_is_permanent_until_a_repair_tries_it_anew(live, endpoint):
    STATE["fails"] = "globex"
    services = RuntimeClient(live.client)
    retriever = consumed(services, endpoint, table_id="fails")
    error = retriever.refused.pop("globex")
    assert not retriever.refused
    assert isinstance(error, InvocationFailedError)
    assert "failed: 422 no such account. Correct the handler" in str(error)
    assert re.search(r"invocation inv_1[\w-]+ of Trades", str(error))
    assert error.permanent
    assert sorted(DONE) == [("acme", 0), ("acme", 1), ("acme", 2)]
    STATE["fails"] = ""
    again = consumed(services, endpoint, table_id="fails")
    assert str(again.refused["globex"]) == str(error)
    mended = consumed(services, endpoint, table_id="fails", repairs=1)
    assert not mended.refused
    assert mended.reports["acme"]["attached"] == 2
    assert sorted(DONE) == [(desk, id_) for desk, id_, *_ in CHANGES]


def test_whether_an_invocation_stands_is_asked_without_beginning_one(live, endpoint):
    services, names = RuntimeClient(live.client), ("Book", "take")
    services.is_keyed(endpoint, *names)
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
    retriever = consumed(services, endpoint, ["acme"], table_id="pauses")
    error = retriever.refused["acme"]
    assert isinstance(error, InvocationGoingError)
    assert "is paused, last 500 " in str(error)
    assert "the ledger is locked" in str(error)
    (paused,) = live.client.invocations(status="paused")
    assert paused["id"] in str(error)
    STATE["pauses"] = ""
    live.client.resume(paused["id"])
    again = consumed(services, endpoint, ["acme"], table_id="pauses")
    assert not again.refused
    assert (again.reports["acme"]["attached"], len(DONE)) == (1, 3)


class Watching(RuntimeClient):
    """Has the handler go well once a look has told why it does not."""

    def poll_invocation(self, invoked, seconds):
        seen = super().poll_invocation(invoked, seconds)
        if seen.failure and not seen.ended:
            STATE["pauses"] = ""
        return seen


def test_an_invocation_that_ends_well_after_it_was_tried_again_has_not_failed(
    live, endpoint, monkeypatch
):
    monkeypatch.setattr(invoking, "LOOK_SECONDS", 0.01)
    STATE["pauses"] = "acme"
    retriever = consumed(Watching(live.client), endpoint, ["acme"], table_id="tried again")
    assert STATE["pauses"] == "", "a look came between two attempts"
    assert not retriever.refused
    assert [("acme", id_) for id_ in range(3)] == DONE


def test_what_is_not_served_or_runs_once_cannot_be_invoked(live, endpoint):
    services = RuntimeClient(live.client)
    for handler, why in (
        ("Trades/lost", rf"The service endpoint {endpoint} serves no handler Trades/lost"),
        ("Once/begin", r"Once/begin is a handler of a workflow, which runs once for a key"),
    ):
        retriever = consumed(services, endpoint, ["acme"], handler=handler)
        error = retriever.refused["acme"]
        assert isinstance(error, ConfigError)
        with pytest.raises(ConfigError, match=why):
            raise error


def test_an_address_may_be_written_otherwise_than_the_runtime_has_it(live, endpoint):
    other = endpoint.replace("http://127.0.0.1", "http://LOCALHOST")
    for _ in range(2):
        assert RuntimeClient(live.client).is_keyed(f"{other}/", "Trades", "booked") is False
    known = {each["uri"] for each in live.client.services() if each["name"] == "Trades"}
    assert known == {other.lower()}


def test_an_address_that_a_person_registered_later_stands_until_another_is_declared(live):
    app = service_app(trades)
    declared, by_hand, next_one = (live.serve(app) for _ in range(3))

    def address():
        (found,) = (each["uri"] for each in live.client.services() if each["name"] == "Trades")
        return found

    assert RuntimeClient(live.client).is_keyed(declared, "Trades", "booked") is False
    assert address() == declared
    live.client.register(by_hand, force=True)
    assert RuntimeClient(live.client).is_keyed(declared, "Trades", "booked") is False
    assert address() == by_hand
    assert RuntimeClient(live.client).is_keyed(next_one, "Trades", "booked") is False
    assert address() == next_one


def test_a_handler_that_the_runtime_forgot_is_looked_for_anew_by_the_next_iteration(live, endpoint):
    services = RuntimeClient(live.client)
    consumed(services, endpoint, table_id="before")
    for each in live.client.deployments():
        httpx.delete(f"{live.url}/admin/deployments/{each['id']}?force=true", trust_env=False)
    forgotten = consumed(services, endpoint, table_id="after")
    # Whichever tenant comes first; the other one may look for it anew already.
    (first, *_) = forgotten.refused.values()
    assert "no longer knows Trades/booked as it did" in str(first)
    assert not any(each.permanent for each in forgotten.refused.values())
    again = consumed(services, endpoint, table_id="after")
    assert not again.refused


def test_a_purged_invocation_is_invoked_anew_by_the_next_iteration(live, endpoint):
    services = RuntimeClient(live.client)
    assert services.is_keyed(endpoint, "Trades", "booked") is False
    body = json.dumps({"tenant": "acme", "rows": []}).encode()
    sent = services.send("Trades", "booked", body, key=None, idempotency_key="k")
    seen = services.poll_invocation(sent, 20)
    assert (seen.ended, seen.failed) == (True, False)
    live.client.purge(sent.id)
    with pytest.raises(InvocationGoingError, match=f"{sent.id} is no longer known to the runtime"):
        services.poll_invocation(sent, 0)
    assert replace(sent, status="x").is_new


def test_a_runtime_that_is_not_there_is_temporary():
    services = open_runtime("http://127.0.0.1:9")
    assert services is open_runtime("http://127.0.0.1:9")
    retriever = consumed(services, "http://127.0.0.1:8")
    assert {type(each) for each in retriever.refused.values()} == {UnavailableError}
    assert "does not answer" in str(retriever.refused["acme"])
