"""One attempt against a real receiver: signatures, addresses, timeouts, kept connections."""

import asyncio
import socket
import ssl
import threading
from contextlib import aclosing, asynccontextmanager

import httpcore
import pytest
from standardwebhooks.webhooks import Webhook

from iscp_dagster import Endpoint
from iscp_dagster.model.clock import get_utc_now
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.webhooks.sending.network import MOST_READ, VettedBackend
from iscp_dagster.webhooks.sending.posting import Poster
from iscp_dagster.webhooks.sending.resolving import Resolver
from runtime_support.endpoints.certificates import certificate
from support.errors import assert_names, raises_naming
from support.outbox.scripted_receiver import receiving, reply, until

SECRET = "whsec_eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHg="
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
TWICE = reply(200, b"ok") + reply(200, b"smuggled")


def poster(url, *, resolver=None, tls=None, **options):
    options = {"allow": ["127.0.0.0/8"], "timeout": 20.0} | options
    endpoint = Endpoint("alerts", url=url, secrets=["SECRET"], **options)
    return Poster(endpoint, {"SECRET": SECRET}, resolver or Resolver(), get_utc_now, tls)


def make_resolver(*answers):
    """Give each look-up the next answer, and then the last one again."""
    rest = list(answers)
    return Resolver(lambda _host, _port: rest.pop(0) if len(rest) > 1 else rest[0])


@asynccontextmanager
async def posting(answering=None, host="127.0.0.1", path="/hook", **options):
    """Run a receiver, and a poster to it; yield both."""
    async with receiving(answering) as receiver:
        url = f"http://{host}:{receiver.port}{path}"
        async with aclosing(poster(url, **options)) as sending:
            yield receiver, sending


async def post(sending, events):
    return [await sending.post(f"event-{number}", b"{}") for number in range(events)]


async def test_the_package_standardwebhooks_verifies_an_event():
    accepted = reply(202, b"thank you")
    async with posting(lambda _: accepted, path="/hook?a=b") as (receiver, sending):
        answer = await sending.post("event-1", b'{"a": 1}')
        await sending.post("event-2", b'{"a": 2}')
    assert (answer.status, answer.text, answer.accepted) == (202, "thank you", True)
    first, second = receiver.requests
    assert Webhook(SECRET).verify(first.body, first.headers) == {"a": 1}
    assert (first.method, first.path, first.id) == ("POST", "/hook?a=b", "event-1")
    assert first.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert first.headers["content-type"] == "application/json"
    # One connection is kept for both.
    assert first.connection == second.connection


@pytest.mark.parametrize(
    ("path", "received"),
    [("", "/"), ("?a=b", "/?a=b"), ("/%C3%A4;v=1/x;w=2?a=b;c", "/%C3%A4;v=1/x;w=2?a=b;c")],
)
async def test_an_event_is_posted_to_the_whole_path(path, received):
    async with posting(path=path) as (receiver, sending):
        await post(sending, 1)
    assert receiver.requests[0].path == received


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(TWICE, id="another answer"),
        pytest.param(reply(200) + b"HTTP/1.1 200 OK\r\nX: ", id="the beginning of one"),
        pytest.param(reply(204, b"HTTP/1.1 200 OK\r\n\r\n"), id="a body where there is none"),
        pytest.param(
            b"HTTP/1.1 200 OK\ncontent-length: 0\n\n" + reply(200), id="after bare line feeds"
        ),
        pytest.param(CHUNKED + b"0\r\n\r\n" + reply(200), id="after chunks"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", id="without a length"),
    ],
)
async def test_bytes_after_an_answer_do_not_acknowledge_the_next_event(first):
    answers = [first, reply(500)]
    delays = [b"HTTP/1.1 200 OK\r\n\r\n"] if b"200 OK\r\n\r\nHTTP" in first else []

    timeout = 0.5 if delays else 20.0
    async with posting(lambda _: answers.pop(0), timeout=timeout) as (receiver, sending):
        statuses = [answer.status for answer in await post(sending, 2)]
        await until(receiver.writers[0].is_closing)
    assert statuses == [None if delays else int(first[9:12]), 500]
    assert [request.connection for request in receiver.requests] == [1, 2]


async def test_bytes_that_come_between_two_events_end_a_connection():
    answers = [reply(200), reply(500)]
    async with posting(lambda _: answers.pop(0)) as (receiver, sending):
        await post(sending, 1)
        ((_, stream),) = sending._idle
        receiver.writers[0].write(reply(200))
        await until(lambda: not stream.clean)
        (answer,) = await post(sending, 1)
        assert (answer.status, receiver.connections) == (500, 2)


async def test_a_connection_that_the_receiver_ended_is_not_a_failed_attempt():
    async with posting() as (receiver, sending):
        (first,) = await post(sending, 1)
        receiver.writers[0].close()
        (second,) = await post(sending, 1)
        await until(lambda: len(receiver.requests) == 2)
        assert (first.status, second.status) == (200, 200)


async def test_redirects_are_not_followed_and_retry_after_is_read():
    async with receiving() as other:
        redirect = reply(307, b"there", location=other.url, retry_after="120")
        async with posting(lambda _: redirect) as (_, sending):
            (answer,) = await post(sending, 1)
    assert (answer.status, answer.retry_after, other.requests) == (307, "120", [])


@pytest.mark.parametrize("lingers", [True, False])
async def test_an_answer_counts_though_the_receiver_has_not_read_the_whole_event(lingers):
    """A receiver that takes no large bodies answers 413 at once, and may never read the rest."""
    answered, over = asyncio.Event(), asyncio.Event()

    async def refuse(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply(413, b"too large"))
        if lingers:
            writer.write_eof()
            while await reader.read(65_536):
                pass
        else:
            await answered.wait()
        writer.transport.abort()
        over.set()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    answer = await poster(f"http://127.0.0.1:{port}/").post("event-1", b"x" * 20_000_000)
    answered.set()
    await over.wait()
    server.close()
    assert (answer.status, answer.text) == (413, "too large")


async def test_at_most_20_kb_of_an_answer_are_read():
    """A long body is left unread; headers without an end are no answer."""
    answers = [
        reply(200, b"y" * 1_000_000),
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 10_000,
        CHUNKED + b"5\r\nabcde\r\n" * 10_000,
    ]
    async with posting(lambda _: answers.pop(0)) as (receiver, sending):
        long, headers, chunked = await post(sending, 3)
    assert (long.status, long.text) == (200, "y" * 500)
    assert headers.status is None
    assert_names(headers.text, f"{MOST_READ:,}")
    assert (chunked.status, chunked.text) == (200, "abcde" * 100)
    assert receiver.connections == 3


@pytest.mark.parametrize(
    "cut",
    [reply(200, b"x" * 100)[:-97], reply(500, b"xy")[:-1], CHUNKED + b"5\r\nabcde\r\n"],
    ids=["", "500", "chunk"],
)
async def test_an_answer_that_is_cut_short_does_not_count(cut):
    async def answer(_):
        receiver.writers[-1].write(cut)

    async with posting(answer) as (receiver, sending):
        (answer,) = await post(sending, 1)
    assert (answer.status, answer.accepted, answer.is_endpoint_refusal) == (None, False, False)
    assert_names(answer.text, "body")


@pytest.mark.parametrize(
    "beginning", [b"", b"HTTP/1.1 200 OK\r\n", reply(200, b"abc")[:-1]], ids=["", "header", "body"]
)
async def test_the_timeout_covers_the_whole_attempt(beginning):
    async def drip(received):
        writer = receiver.writers[received.connection - 1]
        writer.write(beginning)
        while not writer.transport.is_closing():
            if beginning and not beginning.endswith(b"ab"):
                writer.write(b"x: y\r\n")
            await asyncio.sleep(0.02)

    async with posting(drip, timeout=0.2) as (receiver, sending):
        (answer,) = await post(sending, 1)
    assert answer.status is None
    assert_names(answer.text, "0.2 s")


async def test_a_slow_name_keeps_no_other_endpoint_waiting():
    names, go = [], threading.Event()

    def lookup(host, _port):
        names.append(host)
        if host == "slow.example":
            go.wait(30)
        return ["127.0.0.1"]

    async with receiving() as receiver:
        resolver = Resolver(lookup)
        slow = poster(f"http://slow.example:{receiver.port}/", resolver=resolver, timeout=0.3)
        fast = poster(f"http://fast.example:{receiver.port}/", resolver=resolver)
        waiting = [asyncio.ensure_future(slow.post(f"s-{n}", b"{}")) for n in range(40)]
        quick = await fast.post("f-1", b"{}")
        answers = await asyncio.gather(*waiting)
        go.set()
        await fast.aclose()
    assert quick.status == 200
    assert {answer.status for answer in answers} == {None}
    assert_names(answers[0].text, "0.3 s")
    assert names.count("slow.example") == 1


@pytest.mark.parametrize(
    ("addresses", "values"),
    [
        (["10.0.0.1"], ["10.0.0.1", "allow="]),
        (["127.0.0.1", "169.254.169.254"], ["169.254.169.254"]),
        (["::ffff:10.0.0.1"], ["::ffff:10.0.0.1"]),
        ([], ["address"]),
    ],
)
async def test_a_name_with_one_refused_address_is_refused(addresses, values):
    resolver = make_resolver(addresses)
    async with posting(host="hooks.example", resolver=resolver) as (receiver, sending):
        (answer,) = await post(sending, 1)
    assert answer.address_denied
    assert_names(answer.text, "hooks.example", *values)
    assert receiver.connections == 0


async def test_an_address_that_keeps_silent_leaves_time_for_the_next_one():
    options = {"resolver": make_resolver(["127.0.0.2", "127.0.0.1"]), "timeout": 1.5}
    async with posting(host="hooks.example", **options) as (receiver, sending):
        with socket.socket() as silent, socket.socket() as waiting, socket.socket() as full:
            silent.bind(("127.0.0.2", receiver.port))
            silent.listen(0)
            # The next client is not answered at all.
            for client in (waiting, full):
                client.setblocking(False)
                client.connect_ex(("127.0.0.2", receiver.port))
            (answer,) = await post(sending, 1)
            assert answer.status == 200


async def test_a_name_is_vetted_for_each_event_though_a_connection_is_kept():
    resolver = make_resolver(["127.0.0.1"], ["127.0.0.2"], ["10.0.0.1"])
    async with posting(host="hooks.example", resolver=resolver) as (receiver, sending):
        kept, elsewhere, refused = await post(sending, 3)
    assert kept.status == 200
    # Nothing listens at the second address, and nothing went to the first.
    assert (elsewhere.status, elsewhere.address_denied) == (None, False)
    assert_names(elsewhere.text, "127.0.0.2")
    assert refused.address_denied
    assert len(receiver.requests) == 1


async def test_loopback_is_refused_unless_it_is_allowed():
    async with posting(allow=[]) as (receiver, sending):
        (answer,) = await post(sending, 1)
        assert (answer.address_denied, receiver.connections) == (True, 0)


def test_a_network_that_is_never_allowed_is_refused_at_once():
    with raises_naming(ConfigError, "'alerts'", "allow=", "169.254.0.0/16"):
        poster("http://hooks.example/", allow=["169.254.0.0/16"])


async def test_an_unknown_name_is_a_failed_attempt():
    def lookup(_host, _port):
        raise OSError("Name or service not known")

    answer = await poster("http://hooks.example/", resolver=Resolver(lookup)).post("e", b"{}")
    assert_names(answer.text, "hooks.example", "Name or service not known")
    assert not answer.address_denied


async def test_no_proxy_of_the_environment_is_used(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async with posting() as (_, sending):
        (answer,) = await post(sending, 1)
    assert answer.status == 200


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """Return the contexts of a server `hooks.example` and of clients that trust it."""
    file, key = certificate(tmp_path_factory.mktemp("tls"), host="hooks.example")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file, key)
    return server, ssl.create_default_context(cafile=file)


async def test_bytes_before_tls_are_refused(tls):
    """Else an attacker on the way could acknowledge events without the receiver's key."""
    _, client = tls

    async with receiving() as receiver:
        backend = VettedBackend(["127.0.0.1"], 5.0)
        stream = await backend.connect_tcp("hooks.example", receiver.port)
        await until(lambda: receiver.writers)
        receiver.writers[0].write(reply(200))
        await until(lambda: stream.get_extra_info("is_readable"))
        with raises_naming(httpcore.ConnectError, "hooks.example", "receiver"):
            await stream.start_tls(client, "hooks.example")
        await stream.aclose()


async def test_tls_verifies_the_name_though_the_address_is_connected_to(tls):
    server, client = tls

    async with receiving(tls=server) as receiver:
        url = f"https://hooks.example:{receiver.port}/"
        sending = poster(url, resolver=make_resolver(["127.0.0.1"]), tls=client)
        statuses = [answer.status for answer in await post(sending, 2)]
        await sending.aclose()
        url = f"https://other.example:{receiver.port}/"
        other = poster(url, resolver=make_resolver(["127.0.0.1"]), tls=client)
        mismatch = await other.post("event-3", b"{}")
    assert statuses == [200, 200]
    assert [request.connection for request in receiver.requests] == [1, 1]
    assert receiver.requests[0].headers["host"] == f"hooks.example:{receiver.port}"
    assert receiver.names == ["hooks.example", "other.example"]
    assert mismatch.status is None
    assert_names(mismatch.text, "TLS", "other.example")
