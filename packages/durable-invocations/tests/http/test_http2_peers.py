"""What peers of HTTP/2 may do: reset, go away, keep silent, send rubbish, allow little."""

import asyncio
from contextlib import asynccontextmanager

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import pytest
from hyperframe.frame import GoAwayFrame

from durable_invocations.runtime.http.client import HTTP_2, HttpClient
from durable_invocations.runtime.http.connection2 import STREAM_WINDOW
from durable_invocations.runtime.http.exchange import (
    Address,
    DeploymentUnreachableError,
    NotHttp2Error,
    Request,
    StaleError,
)
from durable_invocations.runtime.http.http2 import Http2
from runtime_support.endpoints.scripted_peers import (
    answered,
    asked,
    asking,
    h2_peer,
    raw_peer,
    whole,
)

POST = Request(method="POST", path="/x")


@asynccontextmanager
async def talking(answer, settings=(), **options):
    async with h2_peer(answer, settings) as url, asking(HttpClient(**options)) as client:
        yield client, Address.parse(url)


async def test_a_reset_of_one_exchange_leaves_the_others():
    def answer(connection, event):
        if asked(event) and event.stream_id == 3:
            connection.reset_stream(3, h2.errors.ErrorCodes.INTERNAL_ERROR)
        elif isinstance(event, h2.events.StreamEnded):
            answered(connection, event.stream_id, b"fine")

    async with talking(answer) as (client, url):
        one, two = await client.open(url, POST, HTTP_2), await client.open(url, POST, HTTP_2)
        with pytest.raises(DeploymentUnreachableError, match="reset the exchange: INTERNAL_ERROR"):
            await two.read_head()
        with pytest.raises(DeploymentUnreachableError, match="reset"):
            await two.send(b"more")
        await two.close()
        await one.send(b"", end=True)
        found = await whole(one)
        await one.close()
        assert found == b"fine"


async def test_a_goaway_lets_exchanges_before_it_end_and_tells_that_others_were_not_begun():
    seen = []

    async def talk(reader, writer):
        """The first connection goes away after its first exchange, which it still serves."""
        connection = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        connection.initiate_connection()
        writer.write(connection.data_to_send())
        while data := await reader.read(65_536):
            for event in connection.receive_data(data):
                if asked(event):
                    seen.append(event.stream_id)
                    if event.stream_id == 3:
                        writer.write(GoAwayFrame(0, last_stream_id=1).serialize())
                elif isinstance(event, h2.events.StreamEnded):
                    answered(connection, event.stream_id, b"served")
            writer.write(connection.data_to_send())

    async with raw_peer(talk) as told, asking(HttpClient()) as client:
        url = Address.parse(told)
        one, two = await client.open(url, POST, HTTP_2), await client.open(url, POST, HTTP_2)
        with pytest.raises(StaleError):
            await two.read_head()
        await two.close()
        await one.send(b"", end=True)
        found = await whole(one)
        await one.close()
        three = await client.open(url, POST, HTTP_2)
        await three.send(b"", end=True)
        found += await whole(three)
        await three.close()
        assert found == b"servedserved"
    assert seen == [1, 3, 1]


async def test_a_peer_that_goes_away_at_once_has_closed_the_connection():
    """It is restarted, say: another connection may be opened at once."""

    async def talk(reader, writer):
        connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        connection.initiate_connection()
        writer.write(connection.data_to_send() + GoAwayFrame(0).serialize())
        await reader.read()

    async with raw_peer(talk) as told, asking(HttpClient()) as client:
        with pytest.raises(StaleError, match="closed the connection"):
            await client.open(Address.parse(told), POST, HTTP_2)


async def test_a_goaway_with_an_error_ends_every_exchange():
    def answer(connection, event):
        if asked(event):
            connection.close_connection(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)

    async with talking(answer) as (client, url):
        exchange = await client.open(url, POST, HTTP_2)
        with pytest.raises(DeploymentUnreachableError, match="ENHANCE_YOUR_CALM"):
            await exchange.read_head()
        await exchange.close()


async def test_a_connection_that_ends_ends_every_exchange_and_the_next_one_opens_another():
    def answer(connection, event):
        if asked(event):
            answered(connection, event.stream_id, b"begun", end=False)
        return True if isinstance(event, h2.events.DataReceived) else None

    async with talking(answer) as (client, url):
        for _ in range(2):
            exchange = await client.open(url, POST, HTTP_2)
            assert await exchange.receive() == b"begun"
            await exchange.send(b"now end")
            with pytest.raises(DeploymentUnreachableError, match="closed the connection; check"):
                await exchange.receive()
            await exchange.close()


async def test_a_window_that_is_shut_holds_the_sender_until_it_opens():
    got = bytearray()

    def answer(connection, event):
        if asked(event):
            answered(connection, event.stream_id, b"go", end=False)
        elif isinstance(event, h2.events.DataReceived):
            got.extend(event.data)
            connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            connection.increment_flow_control_window(7, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            connection.end_stream(event.stream_id)

    settings = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 10}
    async with talking(answer, settings.items()) as (client, url):
        exchange = await client.open(url, POST, HTTP_2)
        await exchange.send(b"x" * 500, end=True)
        rest = await whole(exchange)
        await exchange.close()
        assert rest == b"go"
    assert bytes(got) == b"x" * 500


async def test_a_peer_cannot_send_more_than_is_read():
    """What one exchange leaves unread is bounded by its window, and holds up no other one."""
    sent = {1: 0}

    def answer(connection, event):
        if asked(event) and event.stream_id == 1:
            answered(connection, 1, b"", end=False)
        elif asked(event):
            answered(connection, event.stream_id, b"other")
        if 1 in connection.streams:
            while (room := connection.local_flow_control_window(1)) > 0:
                piece = min(room, connection.max_outbound_frame_size)
                connection.send_data(1, b"z" * piece)
                sent[1] += piece

    async with talking(answer) as (client, url):
        greedy = await client.open(url, POST, HTTP_2)
        await greedy.read_head()
        other = await client.open(url, POST, HTTP_2)
        assert await whole(other) == b"other"
        await other.close()
        before = sent[1]
        taken = 0
        while taken <= STREAM_WINDOW:
            taken += len(await greedy.receive())
        await greedy.close()
        assert before <= STREAM_WINDOW


async def test_what_was_not_read_of_closed_exchanges_does_not_use_up_the_connection():
    def answer(connection, event):
        if asked(event):
            connection.send_headers(event.stream_id, [(":status", "200")])
            for _ in range(STREAM_WINDOW // 16_384):
                connection.send_data(event.stream_id, b"z" * 16_384)

    async with talking(answer) as (client, url):
        for _ in range(20):
            exchange = await client.open(url, POST, HTTP_2)
            assert await exchange.receive()
            await exchange.close()


async def quiet(reader, writer):
    """Say that there are no settings, and nothing more."""
    writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
    while await reader.read(65_536):
        pass


async def test_a_silent_peer_is_asked_by_a_ping_and_then_given_up():
    async with raw_peer(quiet) as url, asking(Http2(ping_seconds=0.05)) as pool:
        exchange = await pool.open(Address.parse(url), POST)
        with pytest.raises(DeploymentUnreachableError, match="does not answer a ping"):
            await exchange.read_head()


async def test_a_peer_that_answers_pings_is_kept():
    pings = []

    def answer(connection, event):
        if isinstance(event, h2.events.PingReceived):
            pings.append(event)
            if len(pings) == 3:
                answered(connection, 1, b"still here")

    async with talking(answer, ping_seconds=0.05) as (client, url):
        exchange = await client.open(url, POST, HTTP_2)
        found = await whole(exchange)
        await exchange.close()
        assert found == b"still here"


async def test_a_connection_without_exchanges_is_closed_after_a_while():
    ended = asyncio.Event()

    async def talk(reader, writer):
        await quiet(reader, writer)
        ended.set()

    async with raw_peer(talk) as url, asking(Http2(ping_seconds=0.05)) as pool:
        exchange = await pool.open(Address.parse(url), POST)
        await exchange.close()
        await ended.wait()


@pytest.mark.parametrize(
    "rubbish",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00" * 100,
        b"",
        b"\xff\xff\xff\x00\x00\x00\x00\x00\x00",
    ],
    ids=["http1", "zeros", "nothing", "huge"],
)
async def test_what_is_no_http_2_is_recognized(rubbish):
    async def talk(reader, writer):
        await reader.read(10)
        writer.write(rubbish)
        await writer.drain()

    async with raw_peer(talk) as url, asking(HttpClient()) as client:
        with pytest.raises(NotHttp2Error):
            await client.open(Address.parse(url), POST, HTTP_2)


async def test_a_peer_that_says_nothing_is_no_http_2():
    async def talk(reader, writer):
        await reader.read()
        del writer

    async with raw_peer(talk) as url, asking(Http2(connect_seconds=0.1)) as pool:
        with pytest.raises(NotHttp2Error, match=r"no HTTP/2 settings within 0\.1 s"):
            await pool.open(Address.parse(url), POST)


async def test_all_who_wait_for_a_connection_learn_at_once_that_there_is_none():
    connections = []

    async def mute(reader, writer):
        connections.append(writer)
        await reader.read(-1)

    async with raw_peer(mute) as url, asking(Http2(connect_seconds=0.1)) as pool:
        address = Address.parse(url)
        opens = [pool.open(address, POST) for _ in range(10)]
        found = await asyncio.gather(*opens, return_exceptions=True)
    assert {type(each) for each in found} == {NotHttp2Error}
    assert len(connections) == 1


@pytest.mark.parametrize("ends", ["cancel", "close"])
async def test_a_connection_that_is_being_made_does_not_outlive_its_pool(ends):
    told, gone = asyncio.Event(), asyncio.Event()

    async def mute(reader, writer):
        told.set()
        await reader.read(-1)
        gone.set()

    async with raw_peer(mute) as url:
        pool = Http2(connect_seconds=30)
        opening = asyncio.ensure_future(pool.open(Address.parse(url), POST))
        await told.wait()
        if ends == "cancel":
            opening.cancel()
        await pool.close()
        (found,) = await asyncio.gather(opening, return_exceptions=True)
        await gone.wait()
    if ends == "close":
        assert "the runtime stops" in str(found)
    else:
        assert isinstance(found, asyncio.CancelledError)


async def test_a_peer_that_allows_no_exchange_is_told():
    none = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 0}
    async with talking(lambda connection, event: None, none) as (client, url):
        with pytest.raises(DeploymentUnreachableError, match="allows no HTTP/2 requests"):
            await client.open(url, POST, HTTP_2)


async def test_an_exchange_that_waits_ends_when_its_task_is_canceled():
    def answer(connection, event):
        del connection, event

    async with talking(answer) as (client, url):
        exchange = await client.open(url, POST, HTTP_2)
        waiting = asyncio.ensure_future(exchange.read_head())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await exchange.close()


@pytest.mark.parametrize("status", ["abc", "9" * 20, "2 0", "-20", "²00"])
async def test_a_status_that_is_none_breaks_the_connection_and_nothing_else(status, caplog):
    def answer(connection, event):
        if isinstance(event, h2.events.StreamEnded):
            connection.config.validate_outbound_headers = False
            connection.send_headers(event.stream_id, [(":status", status)])

    async with talking(answer) as (client, url):
        exchange = await client.open(url, POST, HTTP_2)
        await exchange.send(b"x", end=True)
        with pytest.raises(DeploymentUnreachableError, match="its status is"):
            await exchange.read_head()
    assert not caplog.records


async def test_headers_may_have_any_bytes(caplog):
    def answer(connection, event):
        if isinstance(event, h2.events.StreamEnded):
            connection.send_headers(event.stream_id, [(b":status", b"200"), (b"x", b"\xff\xfe")])

    async with talking(answer) as (client, url):
        exchange = await client.open(url, POST, HTTP_2)
        await exchange.send(b"x", end=True)
        assert (await exchange.read_head()).headers == {"x": "\xff\xfe"}
    assert not caplog.records
