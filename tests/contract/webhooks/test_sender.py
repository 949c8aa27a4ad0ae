"""The sender against a real receiver: order, retries, limits, several senders, stopping."""

import asyncio
import base64
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
from support.outbox.outbox_events import event, put
from support.outbox.scripted_receiver import receiving, reply, until

SECRET = "whsec_" + base64.b64encode(b"x" * 32).decode()
QUICK = Pace(look=0.01, record=0.002, lease=30.0, beat=0.05, away=0.02)

ON_ONE = pytest.mark.parametrize("outbox", ["sqlite"], indirect=True)
"""What the database has no part in."""


class Failing(Outbox):
    """An outbox whose database is away when a test says so."""

    away = False

    def begin_write(self):
        if self.away:
            raise UnavailableError("away")
        return super().begin_write()


def sender(outbox, receiver, *, owner="one", pace=QUICK, **options):
    options = {"allow": ["127.0.0.0/8"], "timeout": 10.0} | options
    endpoint = Endpoint("alerts", url=receiver.url, secrets=["S"], **options)
    return Sender(
        outbox,
        [(endpoint, lambda: Poster(endpoint, {"S": SECRET}, Resolver(), outbox.clock))],
        owner=owner,
        batch_id=IdScheme().make_batch_id,
        clock=outbox.clock,
        random=lambda: 0.5,
        pace=pace,
    )


@asynccontextmanager
async def running(made):
    stop = asyncio.Event()
    task = asyncio.ensure_future(made.run(stop))
    try:
        yield task
    finally:
        stop.set()
        await task


def ended(outbox, state="delivered"):
    return sum(each.events for each in outbox.count_deliveries() if each.state == state)


def of_key(receiver, *numbers):
    wanted = {f"alarm-{number}" for number in numbers}
    return [each for each in receiver.ids if each in wanted]


async def test_events_arrive_in_order_of_their_keys_and_one_that_fails_holds_back_its_own(
    outbox, watch
):
    """The failing one is tried again after 5 s and 5 min, with the same id and body."""
    failing = [500, 503]

    def answer(received):
        return reply(failing.pop(0) if received.id == "alarm-0" and failing else 204)

    async with receiving(answer) as receiver, running(sender(outbox, receiver)):
        put(outbox, *[event(number, key=number % 3) for number in range(9)])
        await until(lambda: ended(outbox) == 6)
        assert of_key(receiver, 0, 3, 6) == ["alarm-0"]
        assert of_key(receiver, 1, 4, 7) == ["alarm-1", "alarm-4", "alarm-7"]
        watch.move(5)
        await until(lambda: len(failing) == 0)
        await until(lambda: outbox.show("alarm-0")[0][0].attempts == 2)
        watch.move(299)
        put(outbox, event(10))
        await until(lambda: ended(outbox) == 7)
        assert of_key(receiver, 0, 3, 6) == ["alarm-0", "alarm-0"]
        watch.move(1)
        await until(lambda: ended(outbox) == 10)
    assert of_key(receiver, 0, 3, 6) == ["alarm-0"] * 3 + ["alarm-3", "alarm-6"]
    tries = [each for each in receiver.requests if each.id == "alarm-0"]
    assert len({each.body for each in tries}) == 1
    stamps = [int(each.headers["webhook-timestamp"]) for each in tries]
    assert [stamp - stamps[0] for stamp in stamps] == [0, 5, 305]
    assert [each.next_at and each.next_at - each.at for each in outbox.show("alarm-0")[1]] == [
        timedelta(seconds=5),
        timedelta(minutes=5),
        None,
    ]


@ON_ONE
async def test_what_another_process_puts_is_sent_at_once(outbox):
    other = Outbox(outbox.engine, clock=outbox.clock)

    async with receiving() as receiver, running(sender(outbox, receiver, pace=Pace())):
        await until(lambda: "alerts" in outbox.list_endpoints())
        loop, waits = asyncio.get_running_loop(), []
        for number in range(5):
            await asyncio.to_thread(put, other, event(number))
            begun = loop.time()
            await until(lambda n=number: len(receiver.requests) > n)
            waits.append(loop.time() - begun)
        assert sorted(waits)[2] < 0.5


@ON_ONE
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
        running(sender(outbox, receiver, refusals=3, concurrency=1)),
    ):
        put(outbox, *[event(number) for number in range(5)])
        await until(lambda: any(not each.active for each in outbox.list_endpoints().values()))
        paused = outbox.list_endpoints()["alerts"]
        watch.move(100_000)
        await asyncio.sleep(5 * QUICK.look)
        assert len(receiver.requests) == sent
        assert ended(outbox, "pending") == 5
        outbox.resume("alerts")
        await until(lambda: ended(outbox) == 5)
    assert paused.state == state
    assert str(status) in paused.reason
    assert sorted(set(receiver.ids)) == [f"alarm-{number}" for number in range(5)]


@ON_ONE
async def test_what_the_receiver_does_not_accept_becomes_a_dead_letter_and_the_next_goes_on(outbox):
    def answer(received):
        return reply(422, b"no such field") if received.id == "alarm-0" else reply()

    async with receiving(answer) as receiver, running(sender(outbox, receiver)):
        put(outbox, event(0, key="a"), event(1, key="a"))
        await until(lambda: ended(outbox) == 1)
        assert receiver.ids == ["alarm-0", "alarm-1"]
    ((delivery,), (attempt,)) = outbox.show("alarm-0")
    assert (delivery.state.label, attempt.answer) == ("dead", "no such field")


async def test_batches_are_all_or_nothing_and_composed_once(outbox, watch):
    answers = [reply(500)]

    def answer(_):
        return answers.pop() if answers else reply()

    async with receiving(answer) as receiver:
        put(outbox, *[event(number, key=number % 2) for number in range(7)])
        async with running(sender(outbox, receiver, batch=4, concurrency=1)):
            await until(lambda: len(receiver.requests) >= 1 and ended(outbox, "pending") == 7)
            await until(lambda: outbox.show("alarm-0")[1])
            put(outbox, event(7, key=0))
            watch.move(5)
            await until(lambda: ended(outbox) == 8)
    sent = [[each["event_id"] for each in one.json["data"]] for one in receiver.requests]
    assert sent[0] == sent[1]
    assert len(sent[0]) == 4
    assert receiver.ids[0] == receiver.ids[1] == IdScheme().make_batch_id(sent[0])
    flat = [each for one in sent[1:] for each in one]
    assert sorted(flat) == [f"alarm-{number}" for number in range(8)]
    for parity in (0, 1):
        of_one = [each for each in flat if int(each[-1]) % 2 == parity]
        assert of_one == sorted(of_one)


@pytest.mark.parametrize("status", [413, 422])
async def test_a_batch_that_is_not_accepted_is_split_until_the_event_is_alone_that_is_not(
    outbox, status
):
    """Its events are put in order of their keys all the same."""

    def answer(received):
        events = [each["event_id"] for each in received.json["data"]]
        return reply(status if {"alarm-5", "alarm-6"} & set(events) else 200)

    async with receiving(answer) as receiver:
        put(outbox, *[event(number, key=number % 3) for number in range(12)])
        async with running(sender(outbox, receiver, batch=12, concurrency=4)):
            await until(lambda: ended(outbox, "pending") == 0)
    dead = {each.event_id for each in outbox.list_deliveries() if each.state.label == "dead"}
    assert dead == {"alarm-5", "alarm-6"}
    sent = [[each["event_id"] for each in one.json["data"]] for one in receiver.requests]
    assert receiver.ids == [IdScheme().make_batch_id(each) for each in sent]
    last = [each for one in sent if len(one) == 1 or not dead & set(one) for each in one]
    assert sorted(last) == sorted(f"alarm-{number}" for number in range(12))
    for key in range(3):
        of_one = [each for each in last if int(each.split("-")[1]) % 3 == key]
        assert of_one == [f"alarm-{number}" for number in range(key, 12, 3)]
    (delivery,), attempts = outbox.show("alarm-5")
    assert (delivery.attempts, attempts[-1].verdict) == (1, "dead")


@ON_ONE
async def test_no_more_requests_are_under_way_than_the_endpoint_takes(outbox):
    async def answer(_):
        await asyncio.sleep(0.02)
        return reply()

    async with (
        receiving(answer) as receiver,
        running(sender(outbox, receiver, concurrency=3)),
    ):
        put(outbox, *[event(number) for number in range(12)])
        await until(lambda: ended(outbox) == 12)
        assert receiver.most_under_way == 3


async def test_several_senders_share_the_work_and_one_takes_over_from_another_that_is_silent(
    outbox,
):
    """The silent one has sent an event that it did not record: it is sent again, with its id."""
    pace = Pace(look=0.01, record=0.002, lease=0.4, beat=1_000.0, away=0.02)
    failing = Failing(outbox.engine, clock=outbox.clock)

    async def answer(_):
        failing.away = True
        return reply()

    async with receiving(answer) as receiver:
        put(outbox, event(0, key="a"))
        silent = sender(failing, receiver, pace=pace)
        lost = asyncio.ensure_future(silent.run(asyncio.Event()))
        await until(lambda: receiver.ids == ["alarm-0"])
        put(outbox, event(1, key="a"), event(2))
        quick = Pace(look=0.01, record=0.002, lease=30.0, beat=0.02)
        async with running(sender(outbox, receiver, owner="two", pace=quick)):
            await until(lambda: ended(outbox) == 3)
        lost.cancel()
    assert of_key(receiver, 0, 1) == ["alarm-0", "alarm-0", "alarm-1"]
    assert len({each.body for each in receiver.requests if each.id == "alarm-0"}) == 1


@ON_ONE
async def test_a_sender_that_is_stopped_ends_what_is_under_way_and_leaves_the_rest_to_others(
    outbox,
):
    go = asyncio.Event()

    async def answer(_):
        await go.wait()
        return reply()

    async with receiving(answer) as receiver:
        put(outbox, *[event(number, key="a") for number in range(3)])
        stop = asyncio.Event()
        first = asyncio.ensure_future(sender(outbox, receiver).run(stop))
        await until(lambda: receiver.under_way == 1)
        stop.set()
        go.set()
        await first
        assert ended(outbox) == 1
        async with running(sender(outbox, receiver, owner="two")):
            await until(lambda: ended(outbox) == 3)
        assert receiver.ids == ["alarm-0", "alarm-1", "alarm-2"]


class Slow(Outbox):
    """An outbox whose database answers no look while a test holds it."""

    looking, free = threading.Event(), threading.Event()

    def poll_endpoints(self, endpoints):
        if not self.free.is_set():
            self.looking.set()
            assert self.free.wait(30)
        return super().poll_endpoints(endpoints)


@ON_ONE
async def test_a_sender_that_is_stopped_begins_nothing_while_its_database_is_slow(outbox):
    outbox.__class__, go = Slow, asyncio.Event()
    outbox.free.set()

    async def answer(_):
        await go.wait()
        return reply()

    async with receiving(answer) as receiver:
        put(outbox, *[event(number, key="a") for number in range(3)])
        stop = asyncio.Event()
        made = sender(outbox, receiver)
        first = asyncio.ensure_future(made.run(stop))
        await until(lambda: receiver.under_way == 1)
        outbox.free.clear()
        await until(outbox.looking.is_set)
        stop.set()
        go.set()
        (outlet,) = made._workers.values()
        await until(lambda: not outlet._tasks or len(receiver.requests) > 1)
        outbox.free.set()
        await first
        assert receiver.ids == ["alarm-0"]


@ON_ONE
async def test_a_person_pauses_an_endpoint_while_a_sender_serves_it(outbox):
    async with receiving() as receiver, running(sender(outbox, receiver)):
        put(outbox, event(0))
        await until(lambda: ended(outbox) == 1)
        outbox.pause("alerts")
        await until(lambda: outbox.list_endpoints()["alerts"].seq == 1)
        await asyncio.sleep(5 * QUICK.look)
        put(outbox, event(1))
        await asyncio.sleep(5 * QUICK.look)
        assert receiver.ids == ["alarm-0"]
        outbox.resume("alerts")
        await until(lambda: ended(outbox) == 2)


@ON_ONE
async def test_what_could_not_be_recorded_is_recorded_once_the_database_is_back(outbox):
    failing = Failing(outbox.engine, clock=outbox.clock)

    async def answer(_):
        failing.away = True
        return reply()

    async with receiving(answer) as receiver, running(sender(failing, receiver)):
        put(outbox, event(0))
        await until(lambda: receiver.ids == ["alarm-0"])
        await asyncio.sleep(5 * QUICK.away)
        assert ended(outbox) == 0
        failing.away = False
        await until(lambda: ended(outbox) == 1)
        assert receiver.ids == ["alarm-0"]


@ON_ONE
async def test_when_something_was_delivered_last_is_kept_though_others_fail(outbox, watch):
    answers = [200, 422, 503]

    async with receiving(lambda _: reply(answers.pop(0))) as receiver:
        async with running(sender(outbox, receiver)):
            for number in range(3):
                put(outbox, event(number))
                await until(lambda n=number: outbox.show(f"alarm-{n}")[1])
                watch.move(1)
        state = outbox.list_endpoints()["alerts"]
    assert state.delivered_at == watch() - timedelta(seconds=3)
    assert state.health.failing_since == watch() - timedelta(seconds=1)
