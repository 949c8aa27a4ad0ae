"""What becomes of invocations: attached to, failed, paused, refused to a run that lost its job."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace

import pyarrow as pa
import pytest

from iscp_dagster.joblog import lifecycle
from iscp_dagster.location.assets.metadata import build_consumer_metadata
from iscp_dagster.model.consumers.protocol import merge_facts
from iscp_dagster.model.errors import ConfigError, FenceError, SchemaError, UnavailableError
from iscp_dagster.model.jobs import NewJob
from iscp_dagster.planning.job_specs import make_job_name, make_job_spec
from iscp_dagster.serviceconsumers.consumer import TENANTS, InvokingConsumer
from iscp_dagster.serviceconsumers.errors import InvocationFailedError, InvocationRefusedError
from iscp_dagster.serviceconsumers.runtime_protocol import InvocationUnsettledError
from iscp_dagster.sync.executors.retriever import ConsumerThread
from iscp_dagster.sync.writing.scan import ScanError, _find_stop_error
from support.errors import assert_names, raises_naming
from support.jobs.log_rows import T0
from support.jobs.one_table import Clock
from support.outbox.memory_runtime import (
    SCHEMA,
    FakeRuntime,
    declare_consumer,
    declare_trades,
    make_consumer,
    retriever_of,
    rows_of,
)

CHANGES = [(desk, id_, None, 2, False) for desk in ("acme", "globex") for id_ in range(5)]
DESKS = ("acme", "globex")
SECONDS = 30


class Killed(BaseException):
    """What a run that is killed does not catch."""


def consume(runtime, changes=CHANGES, desks=DESKS, **options):
    """Have a consumer take these changes; return the retriever that gave them."""
    retriever = retriever_of(changes, desks)
    make_consumer(runtime, **options).consume(retriever)
    return retriever


def list_rows(runtime):
    return [(body["tenant"], row["id"]) for body in runtime.bodies for row in body["rows"]]


def list_chunks(runtime, tenant="acme"):
    return [body["chunk"] for body in runtime.bodies if body["tenant"] == tenant]


@dataclass
class Dying(FakeRuntime):
    """Has the run killed at its n-th request, before or after the runtime has taken it."""

    real: FakeRuntime = field(default_factory=FakeRuntime)
    left: int = 1
    taken: bool = False

    def send(self, *arguments, **named):
        with self._lock:
            self.left -= 1
            last, dead = self.left == 0, self.left < 0
        if dead or (last and not self.taken):
            raise Killed
        sent = self.real.send(*arguments, **named)
        if last:
            raise Killed
        return sent

    def poll_invocation(self, invoked, seconds):
        return self.real.poll_invocation(invoked, seconds)


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("requests", [1, 3, 5])
def test_the_next_run_continues_after_one_that_dies_between_chunks(requests, taken):
    runtime = FakeRuntime()
    with pytest.raises(Killed):
        consume(Dying(real=runtime, left=requests, taken=taken))
    invoked = len(runtime.invoked)
    assert invoked == requests - (not taken)
    again = consume(runtime)
    assert not again.refused
    assert sorted(list_rows(runtime)) == sorted((desk, id_) for desk, id_, *_ in CHANGES)
    reports = [again.reports[desk] for desk in DESKS]
    assert [each["invocations"] for each in reports] == [3, 3]
    assert sum(each["attached"] for each in reports) == invoked


@pytest.mark.parametrize("keyed", [False, True])
def test_chunks_of_a_tenant_are_invoked_one_after_the_other(keyed):
    """The key of a virtual object is the tenant."""
    runtime = FakeRuntime(keyed_by_tenant=keyed)
    consume(runtime)
    for desk in DESKS:
        bodies = [body for body in runtime.bodies if body["tenant"] == desk]
        assert [body["chunk"] for body in bodies] == [0, 1, 2]
        assert [body["last"] for body in bodies] == [False, False, True]
    assert runtime.keys == [body["tenant"] if keyed else None for body in runtime.bodies]


def test_at_once_begins_so_many_before_it_waits():
    runtime = FakeRuntime(handler=lambda body: "paused" if body["chunk"] == 0 else None)
    retriever = consume(runtime, CHANGES, ["acme"], declared=declare_consumer(at_once=2))
    assert list_chunks(runtime) == [0, 1]
    assert isinstance(retriever.refused["acme"], InvocationUnsettledError)


def test_a_failed_handler_stops_its_tenant_alone_and_is_invoked_anew_after_a_repair():
    runtime = FakeRuntime(
        handler=lambda b: "400 no." if (b["tenant"], b["chunk"]) == ("acme", 1) else None
    )
    retriever = consume(runtime)
    ((tenant, error),) = retriever.refused.items()
    assert (tenant, type(error), error.permanent) == ("acme", InvocationFailedError, True)
    failed = next(each for each in runtime.invoked.values() if each.failed)
    assert_names(str(error), failed.id, failed.link, "Trades/booked", "chunk 1", "(1, 5]", "400 no")
    assert ".." not in str(error)
    assert retriever.reports["globex"]["invocations"] == 3
    runtime.handler = lambda _: None
    again = consume(runtime)
    assert str(again.refused["acme"]) == str(error), "nobody has repaired the job yet"
    repaired = consume(runtime, repairs={"acme": 1})
    assert not repaired.refused
    assert [repaired.reports[desk]["attached"] for desk in DESKS] == [1, 3]
    assert list_chunks(runtime) == [0, 1, 1, 2]


@dataclass
class Small(FakeRuntime):
    """Takes no row with the id 7."""

    def send(self, service, handler, body, **named):
        if b'"id":7' in body:
            raise InvocationRefusedError("too large", status=413)
        return super().send(service, handler, body, **named)


def test_a_row_that_the_runtime_does_not_take_is_named_with_the_remedy():
    rows = [("acme", 7, None, 2, False), ("globex", 8, None, 2, False)]
    retriever = consume(Small(), rows)
    ((tenant, error),) = retriever.refused.items()
    assert (tenant, type(error)) == ("acme", SchemaError)
    assert_names(str(error), "{'id': 7}", "columns=[...]")
    assert retriever.reports["globex"]["invocations"] == 1


def test_a_reason_without_end_is_cut():
    """It goes to the job's status, to Dagster's events and to terminals."""
    retriever = consume(FakeRuntime(handler=lambda _: f"500 {'m' * 1_000_000}"))
    for error in map(str, retriever.refused.values()):
        assert f"500 {'m' * 100}" in error
        assert "m…." in error
        assert len(error) < 3_000


def test_a_paused_invocation_is_a_temporary_error_that_says_how_to_resume_it():
    runtime = FakeRuntime(handler=lambda body: "paused" if body["tenant"] == "acme" else None)
    retriever = consume(runtime)
    ((tenant, error),) = retriever.refused.items()
    assert (tenant, error.permanent) == ("acme", False)
    paused = next(each for each in runtime.invoked.values() if not each.ended)
    assert_names(str(error), f"`iscp invocations resume {paused.id}`")


def test_a_failure_that_comes_while_no_run_waits_is_permanent_all_the_same():
    runtime = FakeRuntime(handler=lambda body: "paused" if body["chunk"] == 1 else None)
    consume(runtime, CHANGES, ["acme"])
    runtime.end("inv_1", "409 killed")
    error = consume(runtime, CHANGES, ["acme"]).refused["acme"]
    assert isinstance(error, InvocationFailedError)
    assert_names(str(error), "inv_1", "409 killed")
    assert list_chunks(runtime) == [0, 1]


def test_later_runs_attach_to_what_a_repaired_run_invoked_and_fail_with_it():
    runtime = FakeRuntime(handler=lambda body: "422 no" if body["chunk"] == 1 else None)
    for repairs, invoked in ((0, 2), (1, 3), (1, 3), (2, 4), (2, 4)):
        retriever = consume(runtime, CHANGES, ["acme"], repairs={"acme": repairs})
        assert isinstance(retriever.refused["acme"], InvocationFailedError)
        assert len(runtime.bodies) == invoked
    runtime.handler = lambda _: None
    assert not consume(runtime, CHANGES, ["acme"], repairs={"acme": 3}).refused
    assert list_chunks(runtime) == [0, 1, 1, 1, 1, 2]


def test_a_chunk_that_a_repaired_run_begins_is_not_begun_once_more_after_its_death():
    runtime = FakeRuntime(handler=lambda body: "422 no" if body["chunk"] == 0 else None)
    consume(runtime, CHANGES, ["acme"])
    runtime.handler = lambda body: "paused" if body["chunk"] == 2 else None
    consume(runtime, CHANGES, ["acme"], repairs={"acme": 1})
    runtime.end(f"inv_{len(runtime.invoked) - 1}", "409 killed")
    again = consume(runtime, CHANGES, ["acme"], repairs={"acme": 1})
    assert isinstance(again.refused["acme"], InvocationFailedError)
    assert list_chunks(runtime) == [0, 0, 1, 2]


def test_an_invocation_that_does_not_end_is_waited_for_only_so_long():
    clock, waits = Clock(), []

    class Slow(FakeRuntime):
        def poll_invocation(self, invoked, seconds):
            waits.append(seconds)
            clock.pass_(seconds)
            return replace(invoked, status="suspended")

    declared = declare_consumer(patience=10)
    options = {"declared": declared, "monotonic": clock.monotonic}
    error = consume(Slow(), CHANGES[:2], ["acme"], **options).refused["acme"]
    assert isinstance(error, InvocationUnsettledError)
    assert_names(str(error), "suspended", "10 s")
    assert sum(waits) == 11


def test_a_run_waits_as_long_as_invocations_end():
    clock, polls = Clock(), []

    class Steady(FakeRuntime):
        def poll_invocation(self, invoked, seconds):
            clock.pass_(6)
            polls.append(invoked.id)
            ended = polls.count(invoked.id) > 1
            return replace(invoked, status="completed" if ended else "running")

    options = {"declared": declare_consumer(patience=10), "monotonic": clock.monotonic}
    assert not consume(Steady(), CHANGES, ["acme"], **options).refused
    assert len(polls) == 6


def test_a_runtime_that_is_down_is_no_tenants_fault_and_soon_asked_no_more():
    calls = []

    class Down(FakeRuntime):
        def ensure_handler(self, *names):
            calls.append(names)
            raise UnavailableError("The runtime does not answer.")

    desks = [f"desk {number}" for number in range(3 * TENANTS)]
    retriever = consume(Down(), [(desk, 1, None, 2, False) for desk in desks], desks)
    assert retriever.refused.keys() == set(desks)
    assert {type(each) for each in retriever.refused.values()} == {UnavailableError}
    assert len(calls) <= TENANTS


def test_a_zombie_asks_for_what_the_other_run_asked_for():
    """Overtaken after its look at the fence, it attaches to the same invocations."""
    runtime, overtaken = FakeRuntime(), []

    class Zombies(FakeRuntime):
        def send(self, *arguments, **named):
            if not overtaken:
                overtaken.append(True)
                consume(runtime, CHANGES, ["acme"])
            return runtime.send(*arguments, **named)

        def poll_invocation(self, invoked, seconds):
            return runtime.poll_invocation(invoked, seconds)

    report = consume(Zombies(), CHANGES, ["acme"]).reports["acme"]
    assert report["attached"] == report["invocations"] == 3
    assert len(list_rows(runtime)) == len(set(list_rows(runtime))) == 5


def test_a_run_that_lost_a_job_invokes_nothing_more_of_it():
    runtime, lost = FakeRuntime(), FenceError("taken by another writer")

    def find_loss(tenant):
        return lost if tenant == "acme" and list_chunks(runtime) else None

    retriever = consume(runtime, find_claim_error=find_loss)
    assert retriever.refused == {"acme": lost}
    assert list_chunks(runtime) == [0]
    assert retriever.reports["globex"]["invocations"] == 3


def test_a_run_that_is_interrupted_stops_waiting():
    polled, retriever = threading.Event(), retriever_of(CHANGES, ["acme"])
    retriever.messages.get_nowait()
    retriever.messages.queue.clear()

    class Endless(FakeRuntime):
        def poll_invocation(self, invoked, seconds):
            polled.set()
            return replace(invoked, status="suspended")

    claims = SimpleNamespace(find_claim_error=lambda _: None)
    find_error = partial(_find_stop_error, claims, retriever)
    make_endless = partial(make_consumer, Endless(), find_claim_error=find_error)
    worker = ConsumerThread(make_endless, retriever)
    worker.put(rows_of(CHANGES[:2]))
    ending = threading.Thread(target=worker.end)
    ending.start()
    assert polled.wait(SECONDS)
    worker.abort(KeyboardInterrupt())
    ending.join(SECONDS)
    assert not worker.is_alive
    assert isinstance(retriever.refused["acme"], ScanError)


def test_a_rebuilt_job_invokes_everything_anew():
    runtime = FakeRuntime()
    source = declare_trades(declare_consumer())
    (consumer,) = source.services
    spec = make_job_spec(source, consumer)
    row = NewJob(tenant="acme", name=make_job_name(source, consumer), table_id="t", spec=spec)
    job = lifecycle.register_job(row, registration=7, seq=0, now=T0)
    for each in (job, job, lifecycle.rebuild_job(job, T0)):
        generation = each.spec.detail.consumer.generation
        whole = retriever_of(CHANGES, ["acme"], span=(-1, 2), snapshot=True)
        make_consumer(runtime, generation=generation).consume(whole)
    assert list_chunks(runtime) == [0, 1, 2] * 2


def test_a_value_that_json_has_not_stops_its_tenant_alone():
    changes = [("acme", 1, None, 2, False), ("globex", 2, None, 2, False)]
    retriever = retriever_of(changes, DESKS)
    rows = retriever.messages.get()
    years = pa.array([2**62, 0], pa.int64()).cast(pa.timestamp("us"))
    column = SCHEMA.get_field_index("amount")
    retriever.messages.queue.insert(0, rows.set_column(column, "amount", years))
    runtime = FakeRuntime()
    make_consumer(runtime).consume(retriever)
    error = retriever.refused["acme"]
    assert isinstance(error, SchemaError)
    assert_names(str(error), "shop.trades/booked", "'amount'")
    assert [body["tenant"] for body in runtime.bodies] == ["globex"]


@pytest.mark.parametrize(
    ("services", "columns", "value"),
    [(None, ["id"], "ISCP_INVOCATIONS_URL"), (FakeRuntime, ["id", "_change"], "'_change'")],
)
def test_without_a_runtime_or_with_a_reserved_column_there_is_no_consumer(services, columns, value):
    source = declare_trades(declare_consumer())
    info = make_job_spec(source, source.services[0]).detail.consumer
    options = {"table_id": "t", "find_claim_error": lambda _: None, "repairs": {}}
    with raises_naming(ConfigError, "shop.trades/booked", value):
        InvokingConsumer.from_info(source, info, open_runtime=services, columns=columns, **options)


def test_the_invocations_are_shown_with_status_and_link():
    runtime = FakeRuntime()
    report = consume(runtime, CHANGES[:3], ["acme"]).reports["acme"]
    metadata = build_consumer_metadata(report)
    assert (metadata["invocations"], metadata["attached"]) == (2, 0)
    assert metadata["invoked"].value.splitlines()[2:] == [
        "| (1, 5] | 0 | 2 | [inv_0](http://here/inv_0) | completed |",
        "| (1, 5] | 1 | 1 | [inv_1](http://here/inv_1) | completed |",
    ]
    again = build_consumer_metadata(consume(runtime, CHANGES[:3], ["acme"]).reports["acme"])
    assert again["invoked"].value.endswith("was there already |")
    assert build_consumer_metadata({"matches": 3}) == {"matches": 3}


def test_the_latest_of_many_invocations_are_shown():
    runtime = FakeRuntime(handler=lambda body: "422 no" if body["last"] else None)
    changes = [("acme", id_, None, 2, False) for id_ in range(60)]
    retriever = consume(runtime, changes, ["acme"], declared=declare_consumer(rows=1))
    report = retriever.reports["acme"]
    assert retriever.refused.keys() == {"acme"}
    assert report["invocations"] == 60
    assert [each["chunk"] for each in report["invoked"]] == list(range(10, 60))
    assert [each["status"] for each in report["invoked"]] == ["completed"] * 49 + ["failed"]


def test_invocations_from_before_the_runtime_went_down_are_shown_too():
    class Leaving(FakeRuntime):
        def poll_invocation(self, invoked, seconds):
            raise UnavailableError("The runtime does not answer.")

    retriever = consume(Leaving(), CHANGES[:3], ["acme"])
    assert isinstance(retriever.refused["acme"], UnavailableError)
    (invoked,) = retriever.reports["acme"]["invoked"]
    assert (invoked["id"], invoked["status"]) == ("inv_0", "accepted")


def test_the_facts_of_two_ranges_are_merged():
    first = {"invocations": 2, "invoked": [*range(40)], "note": "a", "old": 1}
    second = {"invocations": 3, "invoked": [*range(40, 60)], "note": "b", "new": 2}
    merged = {"invocations": 5, "invoked": [*range(10, 60)], "note": "b", "old": 1, "new": 2}
    assert merge_facts(first, second) == merged
