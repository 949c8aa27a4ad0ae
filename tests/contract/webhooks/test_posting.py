"""One attempt against a real receiver: signatures, addresses, timeouts, kept connections."""

import asyncio
import base64
import socket
import ssl
import threading
from contextlib import aclosing

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
from support.outbox.scripted_receiver import receiving, reply, until

SECRET = "whsec_" + base64.b64encode(b"x" * 32).decode()
TWICE = reply(200, b"ok") + reply(200, b"smuggled")


def poster(url, *, resolver=None, tls=None, **options):
    options = {"allow": ["127.0.0.0/8"], "timeout": 20.0} | options
    endpoint = Endpoint("alerts", url=url, secrets=["SECRET"], **options)
    return Poster(endpoint, {"SECRET": SECRET}, resolver or Resolver(), get_utc_now, tls)


def resolving(*answers):
    """Give each look-up the next answer, and then the last one again."""
    rest = list(answers)
    return Resolver(lambda _host, _port: rest.pop(0) if len(rest) > 1 else rest[0])


async def test_an_event_is_posted_so_that_the_package_standardwebhooks_verifies_it():
    async with (
        receiving(lambda _: reply(202, b"thank you")) as receiver,
        aclosing(poster(receiver.url + "?a=b")) as sending,
    ):
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


async def test_the_whole_path_is_asked_for():
    async with receiving() as receiver:
        for path in ("", "?a=b", "/hook;v=1/x;w=2?a=b;c", "/%C3%A4"):
            async with aclosing(poster(f"http://127.0.0.1:{receiver.port}{path}")) as sending:
                await sending.post("event-1", b"{}")
    paths = [each.path for each in receiver.requests]
    assert paths == ["/", "/?a=b", "/hook;v=1/x;w=2?a=b;c", "/%C3%A4"]


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(TWICE, id="another answer"),
        pytest.param(reply(200) + b"HTTP/1.1 200 OK\r\nX: ", id="the beginning of one"),
        pytest.param(reply(204, b"HTTP/1.1 200 OK\r\n\r\n"), id="a body where there is none"),
        pytest.param(
            b"HTTP/1.1 200 OK\ncontent-length: 0\n\n" + reply(200), id="after bare line feeds"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + reply(200),
            id="after chunks",
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", id="without a length"),
    ],
)
async def test_bytes_after_an_answer_do_not_acknowledge_the_next_event(first):
    answers = [first, reply(500)]
    delays = [b"HTTP/1.1 200 OK\r\n\r\n"] if b"200 OK\r\n\r\nHTTP" in first else []

    async def answer(_):
        return answers.pop(0)

    async with (
        receiving(answer) as receiver,
        aclosing(poster(receiver.url, timeout=0.5 if delays else 20.0)) as sending,
    ):
        found = [await sending.post("event-1", b"{}"), await sending.post("event-2", b"{}")]
    assert found[0].status == (None if delays else int(first[9:12]))
    assert found[1].status == 500
    assert [each.connection for each in receiver.requests] == [1, 2]


async def test_bytes_that_come_while_a_connection_is_at_rest_end_it():
    answers = [reply(200), reply(500)]

    async with (
        receiving(lambda _: answers.pop(0)) as receiver,
        aclosing(poster(receiver.url)) as sending,
    ):
        await sending.post("event-1", b"{}")
        ((_, stream),) = sending._idle
        receiver.writers[0].write(reply(200))
        await until(lambda: not stream.clean)
        answer = await sending.post("event-2", b"{}")
        assert (answer.status, receiver.connections) == (500, 2)


async def test_a_connection_that_the_receiver_ended_is_not_a_failed_attempt():
    async with receiving() as receiver, aclosing(poster(receiver.url)) as sending:
        statuses = [(await sending.post("event-1", b"{}")).status]
        receiver.writers[0].close()
        statuses.append((await sending.post("event-2", b"{}")).status)
        await until(lambda: len(receiver.requests) == 2)
        assert statuses == [200, 200]


async def test_redirects_are_not_followed_and_what_the_answer_asks_is_told():
    async with receiving() as other, receiving() as receiver:
        receiver.answering = lambda _: reply(307, b"there", location=other.url, retry_after="120")
        sending = poster(receiver.url)
        answer = await sending.post("event-1", b"{}")
        await sending.aclose()
    assert (answer.status, answer.retry_after, other.requests) == (307, "120", [])


@pytest.mark.parametrize("lingers", [True, False])
async def test_an_answer_counts_though_the_receiver_has_not_read_the_whole_event(lingers):
    """Who takes no large bodies answers 413 at once, and may never read the rest."""
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
    sent = [reply(200, b"y" * 1_000_000), b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 10_000]
    chunks = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"5\r\nabcde\r\n" * 10_000
    sent.append(chunks)

    async with receiving(lambda _: sent.pop(0)) as receiver:
        sending = poster(receiver.url)
        found = [await sending.post(f"event-{number}", b"{}") for number in range(3)]
    long, headers, chunked = found
    assert (long.status, long.text) == (200, "y" * 500)
    assert headers.status is None
    assert f"more than {MOST_READ:,} bytes" in headers.text
    assert (chunked.status, chunked.text) == (200, "abcde" * 100)
    assert receiver.connections == 3


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n"


@pytest.mark.parametrize(
    "cut", [reply(200, b"x" * 100)[:-97], reply(500, b"xy")[:-1], CHUNKED], ids=["", "500", "chunk"]
)
async def test_an_answer_that_is_cut_short_is_none(cut):
    async def answer(_):
        receiver.writers[-1].write(cut)

    async with receiving(answer) as receiver:
        answer = await poster(receiver.url).post("event", b"{}")
    assert (answer.status, answer.accepted, answer.pauses) == (None, False, False)
    assert "without sending complete message body" in answer.text


@pytest.mark.parametrize(
    "begun", [b"", b"HTTP/1.1 200 OK\r\n", reply(200, b"abc")[:-1]], ids=["", "header", "body"]
)
async def test_the_timeout_is_of_the_whole_attempt(begun):
    async def drip(received):
        writer = receiver_of[0].writers[received.connection - 1]
        writer.write(begun)
        while not writer.transport.is_closing():
            if begun and not begun.endswith(b"ab"):
                writer.write(b"x: y\r\n")
            await asyncio.sleep(0.02)

    receiver_of = []

    async with receiving(drip) as receiver:
        receiver_of.append(receiver)
        answer = await poster(receiver.url, timeout=0.2).post("event-1", b"{}")
    assert (answer.status, answer.text) == (None, "no whole answer within 0.2 s")


async def test_a_slow_name_keeps_no_other_endpoint_waiting():
    asked, go = [], threading.Event()

    def lookup(host, _port):
        asked.append(host)
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
    assert {each.text for each in answers} == {"no whole answer within 0.3 s"}
    assert asked.count("slow.example") == 1


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([["10.0.0.1"]], "hooks.example: 10.0.0.1 is not public; allow="),
        ([["127.0.0.1", "169.254.169.254"]], "hooks.example: 169.254.169.254 is never allowed"),
        ([["::ffff:10.0.0.1"]], "::ffff:10.0.0.1 is not public"),
        ([[]], "hooks.example: no address"),
    ],
)
async def test_a_name_that_leads_to_one_refused_address_is_refused(answers, told):
    async with receiving() as receiver:
        url = f"http://hooks.example:{receiver.port}/"
        answer = await poster(url, resolver=resolving(*answers)).post("event-1", b"{}")
    assert answer.refused
    assert told in answer.text
    assert receiver.connections == 0


async def test_an_address_that_keeps_silent_leaves_time_for_the_next_one():
    async with receiving() as receiver:
        with socket.socket() as silent, socket.socket() as waiting, socket.socket() as full:
            silent.bind(("127.0.0.2", receiver.port))
            silent.listen(0)
            # Whoever comes after them is not answered at all.
            for each in (waiting, full):
                each.setblocking(False)
                each.connect_ex(("127.0.0.2", receiver.port))
            url = f"http://hooks.example:{receiver.port}/"
            resolver = resolving(["127.0.0.2", "127.0.0.1"])
            sending = poster(url, resolver=resolver, timeout=1.5)
            answer = await sending.post("event-1", b"{}")
            await sending.aclose()
            assert answer.status == 200


async def test_a_name_that_leads_elsewhere_later_is_vetted_anew_though_a_connection_is_kept():
    resolver = resolving(["127.0.0.1"], ["127.0.0.2"], ["10.0.0.1"])

    async with receiving() as receiver:
        sending = poster(f"http://hooks.example:{receiver.port}/", resolver=resolver)
        answers = [await sending.post(f"event-{number}", b"{}") for number in range(3)]
    kept, elsewhere, refused = answers
    assert kept.status == 200
    # Nothing listens at the second address, and nothing went to the first.
    assert (elsewhere.status, elsewhere.refused) == (None, False)
    assert "127.0.0.2" in elsewhere.text
    assert refused.refused
    assert len(receiver.requests) == 1


async def test_loopback_is_refused_unless_it_is_allowed():
    async with receiving() as receiver:
        answer = await poster(receiver.url, allow=[]).post("event-1", b"{}")
        assert (answer.refused, receiver.connections) == (True, 0)


def test_a_network_that_is_never_allowed_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"Endpoint 'alerts': allow=.*169.254.0.0/16 is never"):
        poster("http://hooks.example/", allow=["169.254.0.0/16"])


async def test_a_name_that_nobody_knows_is_told():
    def lookup(_host, _port):
        raise OSError("Name or service not known")

    answer = await poster("http://hooks.example/", resolver=Resolver(lookup)).post("e", b"{}")
    assert answer.text == "hooks.example cannot be resolved: Name or service not known"
    assert not answer.refused


async def test_no_proxy_of_the_environment_is_used(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async with receiving() as receiver, aclosing(poster(receiver.url)) as sending:
        answer = await sending.post("event-1", b"{}")
        assert answer.status == 200


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """Return the contexts of a server `hooks.example` and of clients that trust it."""
    file, key = certificate(tmp_path_factory.mktemp("tls"), host="hooks.example")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file, key)
    return server, ssl.create_default_context(cafile=file)


async def test_what_comes_before_tls_is_no_answer(tls):
    """Who sits on the way could else acknowledge events without the receiver's key."""
    _, client = tls

    async with receiving() as receiver:
        backend = VettedBackend(["127.0.0.1"], 5.0)
        stream = await backend.connect_tcp("hooks.example", receiver.port)
        await until(lambda: receiver.writers)
        receiver.writers[0].write(reply(200))
        await until(lambda: stream.get_extra_info("is_readable"))
        with pytest.raises(httpcore.ConnectError, match=r"hooks.example: .* before TLS began"):
            await stream.start_tls(client, "hooks.example")
        await stream.aclose()


async def test_host_name_and_sni_stay_though_the_address_is_connected_to(tls):
    server, client = tls

    async with receiving(tls=server) as receiver:
        url = f"https://hooks.example:{receiver.port}/"
        sending = poster(url, resolver=resolving(["127.0.0.1"]), tls=client)
        statuses = [(await sending.post(f"event-{n}", b"{}")).status for n in range(2)]
        await sending.aclose()
        url = f"https://other.example:{receiver.port}/"
        other = poster(url, resolver=resolving(["127.0.0.1"]), tls=client)
        mismatch = await other.post("event-3", b"{}")
    assert statuses == [200, 200]
    assert [each.connection for each in receiver.requests] == [1, 1]
    assert receiver.requests[0].headers["host"] == f"hooks.example:{receiver.port}"
    assert receiver.names == ["hooks.example", "other.example"]
    assert mismatch.status is None
    assert "TLS with other.example" in mismatch.text
