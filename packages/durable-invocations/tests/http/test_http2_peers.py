"""What peers of HTTP/2 may do: reset, go away, keep silent, send rubbish, allow little."""

import asyncio

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import pytest
from hyperframe.frame import GoAwayFrame

from durable_invocations.runtime.http.connection2 import STREAM_WINDOW
from durable_invocations.runtime.http.exchange import (
    Address,
    DeploymentUnreachableError,
    NotHttp2Error,
    StaleError,
)
from durable_invocations.runtime.http.http2 import Http2
from runtime_support.endpoints.scripted_peers import (
    POST,
    connect,
    h2_peer,
    is_request,
    raw_peer,
    read_body,
    send_response,
)
from runtime_support.errors import raises_naming


async def test_a_reset_of_one_exchange_leaves_the_others():
    def answer(connection, event):
        if is_request(event) and event.stream_id == 3:
            connection.reset_stream(3, h2.errors.ErrorCodes.INTERNAL_ERROR)
        elif isinstance(event, h2.events.StreamEnded):
            send_response(connection, event.stream_id, b"fine")

    async with connect(h2_peer(answer)) as open_exchange:
        one, two = await open_exchange(), await open_exchange()
        with raises_naming(DeploymentUnreachableError, "INTERNAL_ERROR"):
            await two.read_head()
        with raises_naming(DeploymentUnreachableError, "INTERNAL_ERROR"):
            await two.send(b"more")
        await two.close()
        await one.send(b"", end=True)
        assert await read_body(one) == b"fine"


async def test_after_a_goaway_earlier_exchanges_end_and_later_ones_may_be_opened_again():
    requests = []

    async def talk(reader, writer):
        """The first connection goes away after its first exchange, which it still serves."""
        connection = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        connection.initiate_connection()
        writer.write(connection.data_to_send())
        while data := await reader.read(65_536):
            for event in connection.receive_data(data):
                if is_request(event):
                    requests.append(event.stream_id)
                    if event.stream_id == 3:
                        writer.write(GoAwayFrame(0, last_stream_id=1).serialize())
                elif isinstance(event, h2.events.StreamEnded):
                    send_response(connection, event.stream_id, b"served")
            writer.write(connection.data_to_send())

    async with connect(raw_peer(talk)) as open_exchange:
        one, two = await open_exchange(), await open_exchange()
        with pytest.raises(StaleError):
            await two.read_head()
        await two.close()
        await one.send(b"", end=True)
        assert await read_body(one) == b"served"
        await one.close()
        three = await open_exchange()
        await three.send(b"", end=True)
        assert await read_body(three) == b"served"
    assert requests == [1, 3, 1]


async def test_a_peer_that_goes_away_at_once_has_closed_the_connection():
    """It is restarted, say: another connection may be opened at once."""

    async def talk(reader, writer):
        connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        connection.initiate_connection()
        writer.write(connection.data_to_send() + GoAwayFrame(0).serialize())
        await reader.read()

    async with connect(raw_peer(talk)) as open_exchange:
        with pytest.raises(StaleError):
            await open_exchange()


async def test_a_goaway_with_an_error_ends_every_exchange():
    def answer(connection, event):
        if is_request(event):
            connection.close_connection(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)

    async with connect(h2_peer(answer)) as open_exchange:
        exchange = await open_exchange()
        with raises_naming(DeploymentUnreachableError, "ENHANCE_YOUR_CALM"):
            await exchange.read_head()


async def test_a_connection_that_ends_ends_every_exchange_and_the_next_one_opens_another():
    def answer(connection, event):
        if is_request(event):
            send_response(connection, event.stream_id, b"begin", end=False)
        return True if isinstance(event, h2.events.DataReceived) else None

    async with connect(h2_peer(answer)) as open_exchange:
        for _ in range(2):
            exchange = await open_exchange()
            assert await exchange.receive() == b"begin"
            await exchange.send(b"now end")
            with raises_naming(DeploymentUnreachableError, "connection"):
                await exchange.receive()
            await exchange.close()


async def test_a_closed_window_holds_the_sender_until_it_opens():
    data = bytearray()

    def answer(connection, event):
        if is_request(event):
            send_response(connection, event.stream_id, b"go", end=False)
        elif isinstance(event, h2.events.DataReceived):
            data.extend(event.data)
            connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            connection.increment_flow_control_window(7, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            connection.end_stream(event.stream_id)

    settings = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 10}
    async with connect(h2_peer(answer, settings.items())) as open_exchange:
        exchange = await open_exchange()
        await exchange.send(b"x" * 500, end=True)
        assert await read_body(exchange) == b"go"
    assert bytes(data) == b"x" * 500


async def test_a_peer_cannot_send_more_than_is_read():
    """The unread data of one exchange is bounded by its window, and holds up no other one."""
    sent = {1: 0}

    def answer(connection, event):
        if is_request(event) and event.stream_id == 1:
            send_response(connection, 1, b"", end=False)
        elif is_request(event):
            send_response(connection, event.stream_id, b"other")
        if 1 in connection.streams:
            while (room := connection.local_flow_control_window(1)) > 0:
                piece = min(room, connection.max_outbound_frame_size)
                connection.send_data(1, b"z" * piece)
                sent[1] += piece

    async with connect(h2_peer(answer)) as open_exchange:
        greedy = await open_exchange()
        await greedy.read_head()
        assert await read_body(await open_exchange()) == b"other"
        before, received = sent[1], 0
        while received <= STREAM_WINDOW:
            received += len(await greedy.receive())
        assert before <= STREAM_WINDOW


async def test_unread_data_of_closed_exchanges_does_not_use_up_the_connection():
    def answer(connection, event):
        if is_request(event):
            connection.send_headers(event.stream_id, [(":status", "200")])
            for _ in range(STREAM_WINDOW // 16_384):
                connection.send_data(event.stream_id, b"z" * 16_384)

    async with connect(h2_peer(answer)) as open_exchange:
        for _ in range(20):
            exchange = await open_exchange()
            assert await exchange.receive()
            await exchange.close()


async def send_settings(reader, writer):
    """Send empty settings, and nothing more."""
    writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
    while await reader.read(65_536):
        pass


async def test_a_silent_peer_that_answers_no_ping_is_dropped():
    async with connect(raw_peer(send_settings), ping_seconds=0.05) as open_exchange:
        exchange = await open_exchange()
        with raises_naming(DeploymentUnreachableError, "ping"):
            await exchange.read_head()


async def test_a_peer_that_answers_pings_is_kept():
    pings = []

    def answer(connection, event):
        if isinstance(event, h2.events.PingReceived):
            pings.append(event)
            if len(pings) == 3:
                send_response(connection, 1, b"still here")

    async with connect(h2_peer(answer), ping_seconds=0.05) as open_exchange:
        assert await read_body(await open_exchange()) == b"still here"


async def test_a_connection_without_exchanges_is_closed_after_a_while():
    ended = asyncio.Event()

    async def talk(reader, writer):
        await send_settings(reader, writer)
        ended.set()

    async with connect(raw_peer(talk), ping_seconds=0.05) as open_exchange:
        await (await open_exchange()).close()
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
async def test_a_peer_that_sends_other_bytes_speaks_no_http_2(rubbish):
    async def talk(reader, writer):
        await reader.read(10)
        writer.write(rubbish)
        await writer.drain()

    async with connect(raw_peer(talk)) as open_exchange:
        with pytest.raises(NotHttp2Error):
            await open_exchange()


async def test_all_who_wait_for_a_connection_learn_at_once_that_a_mute_peer_speaks_no_http_2():
    connections = []

    async def mute(reader, writer):
        connections.append(writer)
        await reader.read(-1)

    async with connect(raw_peer(mute), connect_seconds=0.1) as open_exchange:
        with raises_naming(NotHttp2Error, "0.1 s"):
            await open_exchange()
        opening = [open_exchange() for _ in range(10)]
        errors = await asyncio.gather(*opening, return_exceptions=True)
    assert {type(error) for error in errors} == {NotHttp2Error}
    assert len(connections) == 2


@pytest.mark.parametrize("end", ["cancel", "close"])
async def test_a_connection_that_is_being_opened_does_not_outlive_its_pool(end):
    connected, disconnected = asyncio.Event(), asyncio.Event()

    async def mute(reader, writer):
        connected.set()
        await reader.read(-1)
        disconnected.set()

    async with raw_peer(mute) as url:
        pool = Http2(connect_seconds=30)
        opening = asyncio.ensure_future(pool.open(Address.parse(url), POST))
        await connected.wait()
        if end == "cancel":
            opening.cancel()
        await pool.close()
        (error,) = await asyncio.gather(opening, return_exceptions=True)
        await disconnected.wait()
    expected = DeploymentUnreachableError if end == "close" else asyncio.CancelledError
    assert type(error) is expected


async def test_a_peer_that_allows_no_exchange_is_unreachable():
    settings = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 0}
    async with connect(h2_peer(lambda *_: None, settings.items())) as open_exchange:
        with raises_naming(DeploymentUnreachableError, "HTTP/2"):
            await open_exchange()


async def test_an_exchange_that_waits_ends_when_its_task_is_canceled():
    async with connect(h2_peer(lambda *_: None)) as open_exchange:
        waiting = asyncio.ensure_future((await open_exchange()).read_head())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


@pytest.mark.parametrize("status", ["abc", "9" * 20, "2 0", "-20", "²00"])
async def test_an_invalid_status_breaks_the_connection_and_nothing_else(status, caplog):
    def answer(connection, event):
        if isinstance(event, h2.events.StreamEnded):
            connection.config.validate_outbound_headers = False
            connection.send_headers(event.stream_id, [(":status", status)])

    async with connect(h2_peer(answer)) as open_exchange:
        exchange = await open_exchange()
        await exchange.send(b"x", end=True)
        with raises_naming(DeploymentUnreachableError, "HTTP/2", "status"):
            await exchange.read_head()
    assert not caplog.records


async def test_headers_may_have_any_bytes(caplog):
    def answer(connection, event):
        if isinstance(event, h2.events.StreamEnded):
            connection.send_headers(event.stream_id, [(b":status", b"200"), (b"x", b"\xff\xfe")])

    async with connect(h2_peer(answer)) as open_exchange:
        exchange = await open_exchange()
        await exchange.send(b"x", end=True)
        assert (await exchange.read_head()).headers == {"x": "\xff\xfe"}
    assert not caplog.records
