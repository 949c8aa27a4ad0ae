"""The sender against a real receiver: order, retries, limits, several senders, stopping."""

import asyncio
import threading
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from iscp_dagster import Endpoint
from iscp_dagster.events.ids import IdScheme
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.webhooks.outbox import Outbox
from iscp_dagster.webhooks.sending.posting import Poster
from iscp_dagster.webhooks.sending.resolving import Resolver
from iscp_dagster.webhooks.sending.sender import Pace, Sender
from support.errors import assert_names
from support.outbox.outbox_events import event, put
from support.outbox.scripted_receiver import receiving, reply, until

SECRET = "whsec_eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHg="
QUICK = Pace(look=0.01, record=0.002, lease=30.0, beat=0.05, away=0.02)

ON_SQLITE = pytest.mark.parametrize("outbox", ["sqlite"], indirect=True)
"""For what does not depend on the database."""


class Failing(Outbox):
    """An outbox whose database is away when a test says so."""

    away = False

    def begin_write(self):
        if self.away:
            raise UnavailableError("away")
        return super().begin_write()


def make_sender(outbox, receiver, *, owner="one", pace=QUICK, **options):
    options = {"allow": ["127.0.0.0/8"], "timeout": 10.0} | options
    endpoint = Endpoint("alerts", url=receiver.url, secrets=["S"], **options)
    return Sender(
        outbox,
        [(endpoint, lambda: Poster(endpoint, {"S": SECRET}, Resolver(), outbox.clock))],
        owner=owner,
        make_batch_id=IdScheme().make_batch_id,
        clock=outbox.clock,
        random=lambda: 0.5,
        pace=pace,
    )


@asynccontextmanager
async def run_sender(outbox, receiver, **options):
    stop = asyncio.Event()
    task = asyncio.ensure_future(make_sender(outbox, receiver, **options).run(stop))
    try:
        yield
    finally:
        stop.set()
        await task


def answer_after(event):
    async def answer(_):
        await event.wait()
        return reply()

    return answer


def fail_at_an_answer(outbox):
    """Have the database of the outbox go away as soon as the receiver has a request."""

    async def answer(_):
        outbox.away = True
        return reply()

    return answer


def count_events(outbox, state="delivered"):
    return sum(count.events for count in outbox.count_deliveries() if count.state == state)


def batches_of(receiver):
    return [[each["event_id"] for each in request.json["data"]] for request in receiver.requests]


def ids_of(receiver, *numbers):
    """Return the ids of these events, as often and in the order in which they came."""
    ids = {f"alarm-{number}" for number in numbers}
    return [id_ for id_ in receiver.ids if id_ in ids]


async def test_events_arrive_in_order_and_a_failing_one_delays_only_its_key(outbox, watch):
    """It is retried after 5 s and 5 min, with the same id and body."""
    failing = [500, 503]

    def answer(received):
        return reply(failing.pop(0) if received.id == "alarm-0" and failing else 204)

    async with receiving(answer) as receiver, run_sender(outbox, receiver):
        put(outbox, *[event(number, key=number % 3) for number in range(9)])
        await until(lambda: count_events(outbox) == 6)
        assert ids_of(receiver, 0, 3, 6) == ["alarm-0"]
        assert ids_of(receiver, 1, 4, 7) == ["alarm-1", "alarm-4", "alarm-7"]
        watch.move(5)
        await until(lambda: len(failing) == 0)
        await until(lambda: outbox.read_event_deliveries("alarm-0")[0][0].attempts == 2)
        watch.move(299)
        put(outbox, event(10))
        await until(lambda: count_events(outbox) == 7)
        assert ids_of(receiver, 0, 3, 6) == ["alarm-0", "alarm-0"]
        watch.move(1)
        await until(lambda: count_events(outbox) == 10)
    assert ids_of(receiver, 0, 3, 6) == ["alarm-0"] * 3 + ["alarm-3", "alarm-6"]
    tries = [request for request in receiver.requests if request.id == "alarm-0"]
    assert len({request.body for request in tries}) == 1
    stamps = [int(request.headers["webhook-timestamp"]) for request in tries]
    assert [stamp - stamps[0] for stamp in stamps] == [0, 5, 305]
    _, attempts = outbox.read_event_deliveries("alarm-0")
    delays = [attempt.next_at and attempt.next_at - attempt.at for attempt in attempts]
    assert delays == [timedelta(seconds=5), timedelta(minutes=5), None]


@ON_SQLITE
async def test_events_of_another_process_are_sent_at_once(outbox):
    other = Outbox(outbox.engine, clock=outbox.clock)

    async with receiving() as receiver, run_sender(outbox, receiver, pace=Pace()):
        await until(lambda: "alerts" in outbox.list_endpoints())
        loop, waits = asyncio.get_running_loop(), []
        for number in range(5):
            await asyncio.to_thread(put, other, event(number))
            start = loop.time()
            await until(lambda n=number: len(receiver.requests) > n)
            waits.append(loop.time() - start)
        assert sorted(waits)[2] < 0.5


@ON_SQLITE
@pytest.mark.parametrize(
    ("status", "sent", "state"), [(410, 1, "disabled"), (404, 3, "paused"), (302, 3, "paused")]
)
async def test_an_endpoint_that_refuses_keeps_its_events_until_it_is_resumed(
    outbox, watch, status, sent, state
):
    answers = [status] * sent

    def answer(_):
        return reply(answers.pop(0) if answers else 200)

    async with (
        receiving(answer) as receiver,
        run_sender(outbox, receiver, refusals=3, concurrency=1),
    ):
        put(outbox, *[event(number) for number in range(5)])
        await until(lambda: not all(each.active for each in outbox.list_endpoints().values()))
        paused = outbox.list_endpoints()["alerts"]
        watch.move(100_000)
        await asyncio.sleep(5 * QUICK.look)
        assert len(receiver.requests) == sent
        assert count_events(outbox, "pending") == 5
        outbox.resume("alerts")
        await until(lambda: count_events(outbox) == 5)
    assert paused.state == state
    assert_names(paused.reason, status)
    assert sorted(set(receiver.ids)) == [f"alarm-{number}" for number in range(5)]


async def test_batches_are_all_or_nothing_and_composed_once(outbox, watch):
    answers = [reply(500)]

    def answer(_):
        return answers.pop() if answers else reply()

    async with receiving(answer) as receiver:
        put(outbox, *[event(number, key=number % 2) for number in range(7)])
        async with run_sender(outbox, receiver, batch=4, concurrency=1):
            await until(lambda: receiver.requests and count_events(outbox, "pending") == 7)
            await until(lambda: outbox.read_event_deliveries("alarm-0")[1])
            put(outbox, event(7, key=0))
            watch.move(5)
            await until(lambda: count_events(outbox) == 8)
    first, *batches = batches_of(receiver)
    assert first == batches[0]
    assert len(first) == 4
    assert receiver.ids[0] == receiver.ids[1] == IdScheme().make_batch_id(first)
    ids = [id_ for batch in batches for id_ in batch]
    assert sorted(ids) == [f"alarm-{number}" for number in range(8)]
    for parity in (0, 1):
        of_key = [id_ for id_ in ids if int(id_[-1]) % 2 == parity]
        assert of_key == sorted(of_key)


@pytest.mark.parametrize("status", [413, 422])
async def test_a_refused_batch_is_split_down_to_the_refused_events(outbox, status):
    """The events still arrive in the order of their keys."""

    def answer(received):
        events = [each["event_id"] for each in received.json["data"]]
        return reply(status if {"alarm-5", "alarm-6"} & set(events) else 200)

    async with receiving(answer) as receiver:
        put(outbox, *[event(number, key=number % 3) for number in range(12)])
        async with run_sender(outbox, receiver, batch=12, concurrency=4):
            await until(lambda: count_events(outbox, "pending") == 0)
    dead = {each.event_id for each in outbox.list_deliveries() if each.state.label == "dead"}
    assert dead == {"alarm-5", "alarm-6"}
    batches = batches_of(receiver)
    assert receiver.ids == [IdScheme().make_batch_id(batch) for batch in batches]
    ids = [id_ for batch in batches if len(batch) == 1 or not dead & set(batch) for id_ in batch]
    assert sorted(ids) == sorted(f"alarm-{number}" for number in range(12))
    for key in range(3):
        of_key = [id_ for id_ in ids if int(id_.split("-")[1]) % 3 == key]
        assert of_key == [f"alarm-{number}" for number in range(key, 12, 3)]
    (delivery,), attempts = outbox.read_event_deliveries("alarm-5")
    assert (delivery.attempts, attempts[-1].verdict) == (1, "dead")


@ON_SQLITE
async def test_no_more_requests_are_open_than_the_endpoint_takes(outbox):
    async def answer(_):
        await asyncio.sleep(0.02)
        return reply()

    async with receiving(answer) as receiver, run_sender(outbox, receiver, concurrency=3):
        put(outbox, *[event(number) for number in range(12)])
        await until(lambda: count_events(outbox) == 12)
        assert receiver.most_under_way == 3


async def test_a_sender_takes_over_from_a_silent_one(outbox):
    """The silent one has sent an event that it did not record: it is sent again, with its id."""
    pace = Pace(look=0.01, record=0.002, lease=0.4, beat=1_000.0, away=0.02)
    failing = Failing(outbox.engine, clock=outbox.clock)
    async with receiving(fail_at_an_answer(failing)) as receiver:
        put(outbox, event(0, key="a"))
        silent = make_sender(failing, receiver, pace=pace)
        lost = asyncio.ensure_future(silent.run(asyncio.Event()))
        await until(lambda: receiver.ids == ["alarm-0"])
        put(outbox, event(1, key="a"), event(2))
        quick = Pace(look=0.01, record=0.002, lease=30.0, beat=0.02)
        async with run_sender(outbox, receiver, owner="two", pace=quick):
            await until(lambda: count_events(outbox) == 3)
        lost.cancel()
    assert ids_of(receiver, 0, 1) == ["alarm-0", "alarm-0", "alarm-1"]
    assert len({request.body for request in receiver.requests if request.id == "alarm-0"}) == 1


class Slow(Outbox):
    """An outbox whose database answers no look while a test holds it."""

    looking, free = threading.Event(), threading.Event()

    def poll_endpoints(self, endpoints):
        if not self.free.is_set():
            self.looking.set()
            assert self.free.wait(30)
        return super().poll_endpoints(endpoints)


@ON_SQLITE
async def test_a_stopped_sender_ends_its_request_and_leaves_the_rest_to_others(outbox):
    """It begins nothing more, also while its database is slow."""
    outbox.__class__, go = Slow, asyncio.Event()
    outbox.free.set()
    async with receiving(answer_after(go)) as receiver:
        put(outbox, *[event(number, key="a") for number in range(3)])
        stop = asyncio.Event()
        stopped = make_sender(outbox, receiver)
        first = asyncio.ensure_future(stopped.run(stop))
        await until(lambda: receiver.under_way == 1)
        outbox.free.clear()
        await until(outbox.looking.is_set)
        stop.set()
        go.set()
        (outlet,) = stopped._workers.values()
        await until(lambda: not outlet._tasks or len(receiver.requests) > 1)
        outbox.free.set()
        await first
        assert (receiver.ids, count_events(outbox)) == (["alarm-0"], 1)
        async with run_sender(outbox, receiver, owner="two"):
            await until(lambda: count_events(outbox) == 3)
        assert receiver.ids == ["alarm-0", "alarm-1", "alarm-2"]


@ON_SQLITE
async def test_a_person_pauses_an_endpoint_while_a_sender_serves_it(outbox):
    async with receiving() as receiver, run_sender(outbox, receiver):
        put(outbox, event(0))
        await until(lambda: count_events(outbox) == 1)
        outbox.pause("alerts")
        await until(lambda: outbox.list_endpoints()["alerts"].seq == 1)
        await asyncio.sleep(5 * QUICK.look)
        put(outbox, event(1))
        await asyncio.sleep(5 * QUICK.look)
        assert receiver.ids == ["alarm-0"]
        outbox.resume("alerts")
        await until(lambda: count_events(outbox) == 2)


@ON_SQLITE
async def test_an_attempt_is_recorded_once_the_database_is_back(outbox):
    failing = Failing(outbox.engine, clock=outbox.clock)
    async with receiving(fail_at_an_answer(failing)) as receiver, run_sender(failing, receiver):
        put(outbox, event(0))
        await until(lambda: receiver.ids == ["alarm-0"])
        await asyncio.sleep(5 * QUICK.away)
        assert count_events(outbox) == 0
        failing.away = False
        await until(lambda: count_events(outbox) == 1)
        assert receiver.ids == ["alarm-0"]


@ON_SQLITE
async def test_the_time_of_the_last_delivery_is_kept_though_others_fail(outbox, watch):
    answers = [200, 422, 503]

    async with receiving(lambda _: reply(answers.pop(0))) as receiver:
        async with run_sender(outbox, receiver):
            for number in range(3):
                put(outbox, event(number))
                await until(lambda n=number: outbox.read_event_deliveries(f"alarm-{n}")[1])
                watch.move(1)
        state = outbox.list_endpoints()["alerts"]
    states = [each.state.label for each in outbox.list_deliveries()]
    assert states == ["pending", "dead", "delivered"]
    assert state.delivered_at == watch() - timedelta(seconds=3)
    assert state.health.failing_since == watch() - timedelta(seconds=1)
