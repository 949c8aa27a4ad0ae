"""What becomes of invocations: attached to, failed, paused, refused to a run that lost its job."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace

import pyarrow as pa
import pytest

from iscp_dagster import ServiceConsumer, SourceTable
from iscp_dagster.joblog import lifecycle
from iscp_dagster.location.assets.metadata import build_consumer_metadata
from iscp_dagster.model.consumers.protocol import merge_facts
from iscp_dagster.model.errors import ConfigError, FenceError, SchemaError, UnavailableError
from iscp_dagster.model.jobs import NewJob
from iscp_dagster.planning.declared import make_job_spec, name_of
from iscp_dagster.serviceconsumers.consumer import TENANTS, InvokingConsumer
from iscp_dagster.serviceconsumers.errors import (
    InvocationFailedError,
    InvocationRefusedError,
)
from iscp_dagster.serviceconsumers.services import InvocationGoingError
from iscp_dagster.sync.executors.retriever import ConsumerThread
from iscp_dagster.sync.writing.scan import ScanError, _find_loss
from support.jobs.log_rows import T0
from support.jobs.one_table import Clock
from support.outbox.memory_runtime import SCHEMA, Runtime, retriever_of, rows_of

CHANGES = [(desk, id_, None, 2, False) for desk in ("acme", "globex") for id_ in range(5)]
DESKS = ("acme", "globex")
SECONDS = 30


class Killed(BaseException):
    """What a run that is killed does not catch."""


def declared(**options):
    return ServiceConsumer("http://a:1", handler="Trades/booked", **({"rows": 2} | options))


def consumer(runtime, **changes):
    made = changes.pop("declared", None) or declared()
    given = {
        "source": SourceTable("shop.trades", key="id", tenant="desk", services=[made]),
        "declared": made,
        "table_id": "t",
        "generation": 0,
        "services": runtime,
        "lost": lambda _: None,
    }
    return InvokingConsumer(**(given | changes))


def consumed(runtime, changes=CHANGES, desks=DESKS, **options):
    """Have a consumer take these changes; return the retriever that gave them."""
    retriever = retriever_of(changes, desks)
    consumer(runtime, **options).consume(retriever)
    return retriever


def rows_told(runtime):
    return [(body["tenant"], row["id"]) for body in runtime.bodies for row in body["rows"]]


@dataclass
class Dying(Runtime):
    """Has the run killed at its n-th request, before or after the runtime has taken it."""

    real: Runtime = field(default_factory=Runtime)
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
def test_a_run_that_dies_between_two_chunks_is_gone_on_with(requests, taken):
    runtime = Runtime()
    with pytest.raises(Killed):
        consumer(Dying(real=runtime, left=requests, taken=taken)).consume(
            retriever_of(CHANGES, DESKS)
        )
    done = len(runtime.invoked)
    assert done == requests - (not taken)
    again = consumed(runtime)
    assert not again.refused
    assert sorted(rows_told(runtime)) == sorted((desk, id_) for desk, id_, *_ in CHANGES)
    told = [again.reports[desk] for desk in DESKS]
    assert [each["invocations"] for each in told] == [3, 3]
    assert sum(each["attached"] for each in told) == done


def test_chunks_of_a_tenant_are_invoked_one_after_the_other():
    runtime = Runtime()
    consumed(runtime)
    for desk in DESKS:
        mine = [body for body in runtime.bodies if body["tenant"] == desk]
        assert [body["chunk"] for body in mine] == [0, 1, 2]
        assert [body["last"] for body in mine] == [False, False, True]


def test_at_once_begins_so_many_before_it_waits():
    runtime = Runtime(handler=lambda body: "paused" if body["chunk"] == 0 else None)
    retriever = consumed(runtime, CHANGES, ["acme"], declared=declared(at_once=2))
    assert [body["chunk"] for body in runtime.bodies] == [0, 1]
    assert isinstance(retriever.refused["acme"], InvocationGoingError)


def test_a_failed_handler_stops_its_tenant_alone_and_is_invoked_anew_after_a_repair():
    runtime = Runtime(
        handler=lambda b: "400 no." if (b["tenant"], b["chunk"]) == ("acme", 1) else None
    )
    retriever = consumed(runtime)
    ((tenant, error),) = retriever.refused.items()
    assert (tenant, type(error), error.permanent) == ("acme", InvocationFailedError, True)
    failed = next(each for each in runtime.invoked.values() if each.failed)
    assert f"invocation {failed.id} of Trades/booked with chunk 1 of (1, 5]" in str(error)
    assert f"({failed.link}) failed: 400 no. Correct the handler" in str(error)
    assert retriever.reports["globex"]["invocations"] == 3
    runtime.handler = lambda _: None
    repeated = consumed(runtime)
    assert str(repeated.refused["acme"]) == str(error), "nobody has repaired the job yet"
    mended = consumed(runtime, repairs={"acme": 1})
    assert not mended.refused
    assert [mended.reports[desk]["attached"] for desk in DESKS] == [1, 3]
    mine = [body["chunk"] for body in runtime.bodies if body["tenant"] == "acme"]
    assert mine == [0, 1, 1, 2]


@dataclass
class Small(Runtime):
    """Takes no row with the id 7."""

    def send(self, service, handler, body, **named):
        if b'"id":7' in body:
            raise InvocationRefusedError("too large", status=413)
        return super().send(service, handler, body, **named)


def test_a_row_that_the_runtime_does_not_take_is_named_with_the_remedy():
    rows = [("acme", 7, None, 2, False), ("globex", 8, None, 2, False)]
    retriever = consumed(Small(), rows, DESKS)
    ((tenant, error),) = retriever.refused.items()
    assert (tenant, type(error)) == ("acme", SchemaError)
    assert "its largest row is {'id': 7}. " in str(error)
    assert "columns=[...]" in str(error)
    assert retriever.reports["globex"]["invocations"] == 1


def test_a_reason_without_end_is_cut():
    """It goes to the job's status, to Dagster's events and to terminals."""
    runtime = Runtime(handler=lambda _: f"500 {'m' * 1_000_000}")
    retriever = consumed(runtime)
    for error in retriever.refused.values():
        assert "failed: 500 mmm" in str(error)
        assert "mm…. Correct the handler" in str(error)
        assert len(str(error)) < 3_000


def test_a_paused_invocation_is_a_temporary_error_that_says_how_to_resume_it():
    runtime = Runtime(handler=lambda body: "paused" if body["tenant"] == "acme" else None)
    retriever = consumed(runtime)
    ((tenant, error),) = retriever.refused.items()
    assert (tenant, error.permanent) == ("acme", False)
    paused = next(each for each in runtime.invoked.values() if not each.ended)
    assert f"is paused; resume it (`iscp invocations resume {paused.id}`)" in str(error)


def test_a_failure_that_comes_while_no_run_waits_is_permanent_all_the_same():
    runtime = Runtime(handler=lambda body: "paused" if body["chunk"] == 1 else None)
    consumed(runtime, CHANGES, ["acme"])
    runtime.end("inv_1", "409 killed")
    later = consumed(runtime, CHANGES, ["acme"])
    assert isinstance(later.refused["acme"], InvocationFailedError)
    assert "invocation inv_1 " in str(later.refused["acme"])
    assert [body["chunk"] for body in runtime.bodies] == [0, 1]


def test_what_a_repair_began_is_attached_to_and_fails_once_more_for_all_that_follow():
    runtime = Runtime(handler=lambda body: "422 no" if body["chunk"] == 1 else None)
    for repairs, invoked in ((0, 2), (1, 3), (1, 3), (2, 4), (2, 4)):
        again = retriever_of(CHANGES, ["acme"])
        consumer(runtime, repairs={"acme": repairs}).consume(again)
        assert isinstance(again.refused["acme"], InvocationFailedError)
        assert len(runtime.bodies) == invoked
    runtime.handler = lambda _: None
    mended = consumed(runtime, CHANGES, ["acme"], repairs={"acme": 3})
    assert not mended.refused
    assert [body["chunk"] for body in runtime.bodies] == [0, 1, 1, 1, 1, 2]


def test_a_chunk_that_a_repaired_run_begins_is_not_begun_once_more_after_its_death():
    runtime = Runtime(handler=lambda body: "422 no" if body["chunk"] == 0 else None)
    consumed(runtime, CHANGES, ["acme"])
    runtime.handler = lambda body: "paused" if body["chunk"] == 2 else None
    consumer(runtime, repairs={"acme": 1}).consume(retriever_of(CHANGES, ["acme"]))
    runtime.end(f"inv_{len(runtime.invoked) - 1}", "409 killed")
    replayed = consumed(runtime, CHANGES, ["acme"], repairs={"acme": 1})
    assert isinstance(replayed.refused["acme"], InvocationFailedError)
    assert [body["chunk"] for body in runtime.bodies] == [0, 0, 1, 2]


def test_an_invocation_that_goes_on_is_waited_for_only_so_long():
    clock, looks = Clock(), []

    class Slow(Runtime):
        def poll_invocation(self, invoked, seconds):
            looks.append(seconds)
            clock.pass_(seconds)
            return replace(invoked, status="suspended")

    made = declared(patience=10)
    retriever = consumed(Slow(), CHANGES[:2], ["acme"], declared=made, monotonic=clock.monotonic)
    error = retriever.refused["acme"]
    assert isinstance(error, InvocationGoingError)
    assert "is suspended; it continues (an iteration waits 10 s for it)" in str(error)
    assert sum(looks) == 11


def test_it_is_waited_for_as_long_as_invocations_end():
    clock, looks = Clock(), []

    class Steady(Runtime):
        def poll_invocation(self, invoked, seconds):
            clock.pass_(6)
            looks.append(invoked.id)
            ended = looks.count(invoked.id) > 1
            return replace(invoked, status="completed" if ended else "running")

    retriever = retriever_of(CHANGES, ["acme"])
    made = declared(patience=10)
    consumer(Steady(), declared=made, monotonic=clock.monotonic).consume(retriever)
    assert not retriever.refused
    assert len(looks) == 6


def test_a_runtime_that_is_down_is_no_tenants_fault_and_soon_asked_no_more():
    asked = []

    class Down(Runtime):
        def is_keyed(self, *names):
            asked.append(names)
            raise UnavailableError("The runtime does not answer.")

    desks = [f"desk {each}" for each in range(3 * TENANTS)]
    retriever = consumed(Down(), [(desk, 1, None, 2, False) for desk in desks], desks)
    assert retriever.refused.keys() == set(desks)
    assert {type(each) for each in retriever.refused.values()} == {UnavailableError}
    assert len(asked) <= TENANTS


def test_a_virtual_objects_key_is_the_tenant():
    runtime = Runtime(keyed_by_tenant=True)
    consumed(runtime)
    assert runtime.keys == [body["tenant"] for body in runtime.bodies]


def test_a_zombie_that_goes_on_asks_for_what_the_other_run_asked_for():
    """Overtaken after its look at the fence, it attaches; then it sees that it lost the job."""
    runtime, seen = Runtime(), list[object]()

    class Zombies(Runtime):
        def send(self, *arguments, **named):
            if not seen:
                seen.append(arguments)
                consumed(runtime, CHANGES, ["acme"])
            return runtime.send(*arguments, **named)

        def poll_invocation(self, invoked, seconds):
            return runtime.poll_invocation(invoked, seconds)

    lost = FenceError("taken")
    zombie = consumed(Zombies(), CHANGES, ["acme"], lost=lambda _: lost if len(seen) > 1 else None)
    assert zombie.reports["acme"]["attached"] == zombie.reports["acme"]["invocations"] == 3
    assert len(rows_told(runtime)) == len(set(rows_told(runtime))) == 5


def test_a_run_that_lost_a_job_invokes_nothing_more_of_it():
    runtime, lost = Runtime(), FenceError("taken by another writer")

    def after_one(tenant):
        mine = [body for body in runtime.bodies if body["tenant"] == tenant]
        return lost if tenant == "acme" and mine else None

    retriever = consumed(runtime, lost=after_one)
    assert retriever.refused == {"acme": lost}
    assert [body["chunk"] for body in runtime.bodies if body["tenant"] == "acme"] == [0]
    assert retriever.reports["globex"]["invocations"] == 3


def test_a_run_that_is_interrupted_stops_waiting():
    asked, retriever = threading.Event(), retriever_of(CHANGES, ["acme"])
    retriever.coming.get_nowait()
    retriever.coming.queue.clear()

    class Endless(Runtime):
        def poll_invocation(self, invoked, seconds):
            asked.set()
            return replace(invoked, status="suspended")

    lost = partial(_find_loss, SimpleNamespace(find_loss=lambda _: None), retriever)
    worker = ConsumerThread(lambda: consumer(Endless(), lost=lost), retriever)
    worker.put(rows_of(CHANGES[:2]))
    ending = threading.Thread(target=worker.end)
    ending.start()
    assert asked.wait(SECONDS)
    worker.abort(KeyboardInterrupt())
    ending.join(SECONDS)
    assert not worker.is_alive
    assert isinstance(retriever.refused["acme"], ScanError)


def test_a_rebuilt_job_invokes_everything_anew():
    runtime = Runtime()
    source = SourceTable("shop.trades", key="id", tenant="desk", services=[declared()])
    spec = make_job_spec(source, source.services[0])
    row = NewJob(tenant="acme", name=name_of(source, source.services[0]), table_id="t", spec=spec)
    job = lifecycle.register_job(row, registration=7, seq=0, now=T0)
    for each in (job, job, lifecycle.rebuild_job(job, T0)):
        generation = each.spec.detail.consumer.generation
        whole = retriever_of(CHANGES, ["acme"], span=(-1, 2), snapshot=True)
        consumer(runtime, generation=generation).consume(whole)
    assert [body["chunk"] for body in runtime.bodies] == [0, 1, 2] * 2


def test_a_value_that_json_has_not_stops_its_tenant_alone():
    changes = [("acme", 1, None, 2, False), ("globex", 2, None, 2, False)]
    retriever = retriever_of(changes, DESKS)
    rows = retriever.coming.get()
    when = SCHEMA.get_field_index("amount")
    years = pa.array([2**62, 0], pa.int64()).cast(pa.timestamp("us"))
    retriever.coming.queue.insert(0, rows.set_column(when, "amount", years))
    runtime = Runtime()
    consumer(runtime).consume(retriever)
    assert isinstance(retriever.refused["acme"], SchemaError)
    assert "Job shop.trades/trades_booked: column 'amount' has a value" in str(
        retriever.refused["acme"]
    )
    assert [body["tenant"] for body in runtime.bodies] == ["globex"]


def test_without_a_runtime_or_with_a_column_of_a_taken_name_there_is_no_consumer():
    made = declared()
    source = SourceTable("shop.trades", key="id", tenant="desk", services=[made])
    info = make_job_spec(source, made).detail.consumer
    given = {"table_id": "t", "lost": lambda _: None, "repairs": {}}
    with pytest.raises(ConfigError, match="no runtime of invocations is named; set ISCP_INVOCATIO"):
        InvokingConsumer.from_info(source, info, services=None, columns=["id"], **given)
    with pytest.raises(ConfigError, match="the source has a column '_change', a name that every"):
        InvokingConsumer.from_info(
            source, info, services=Runtime, columns=["id", "_change"], **given
        )


def test_the_invocations_are_shown_with_status_and_link():
    runtime = Runtime()
    retriever = consumed(runtime, CHANGES[:3], ["acme"])
    shown = build_consumer_metadata(retriever.reports["acme"])
    assert (shown["invocations"], shown["attached"]) == (2, 0)
    assert shown["invoked"].value.splitlines()[2:] == [
        "| (1, 5] | 0 | 2 | [inv_0](http://here/inv_0) | completed |",
        "| (1, 5] | 1 | 1 | [inv_1](http://here/inv_1) | completed |",
    ]
    again = consumed(runtime, CHANGES[:3], ["acme"])
    assert build_consumer_metadata(again.reports["acme"])["invoked"].value.endswith(
        "was there already |"
    )
    assert build_consumer_metadata({"matches": 3}) == {"matches": 3}


def test_of_many_invocations_the_latest_are_shown_of_which_the_last_one_failed():
    runtime = Runtime(handler=lambda body: "422 no" if body["last"] else None)
    changes = [("acme", id_, None, 2, False) for id_ in range(60)]
    retriever = consumed(runtime, changes, ["acme"], declared=declared(rows=1))
    told = retriever.reports["acme"]
    assert retriever.refused.keys() == {"acme"}
    assert told["invocations"] == 60
    assert [each["chunk"] for each in told["invoked"]] == list(range(10, 60))
    assert [each["status"] for each in told["invoked"]] == ["completed"] * 49 + ["failed"]


def test_what_was_begun_before_the_runtime_went_down_is_shown_too():
    class Leaving(Runtime):
        def poll_invocation(self, invoked, seconds):
            raise UnavailableError("The runtime does not answer.")

    retriever = consumed(Leaving(), CHANGES[:3], ["acme"])
    assert isinstance(retriever.refused["acme"], UnavailableError)
    (shown,) = retriever.reports["acme"]["invoked"]
    assert (shown["id"], shown["status"]) == ("inv_0", "accepted")


def test_what_was_told_of_two_ranges_is_put_together():
    first = {"invocations": 2, "invoked": [*range(40)], "said": "a", "old": 1}
    second = {"invocations": 3, "invoked": [*range(40, 60)], "said": "b", "new": 2}
    assert merge_facts(first, second) == {
        "invocations": 5,
        "invoked": [*range(10, 60)],
        "said": "b",
        "old": 1,
        "new": 2,
    }
