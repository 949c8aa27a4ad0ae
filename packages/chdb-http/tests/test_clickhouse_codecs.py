"""Encodings, errors, forms and Arrow files of the embedded server."""

from __future__ import annotations

import asyncio
import gzip
import time
import zlib

import lz4.frame
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from chdb_http.engine.options import check_url
from chdb_http.http.arrow_file import extract_stream
from chdb_http.http.body import Body
from chdb_http.http.codecs import choose_encoding, make_decoder, make_encoder
from chdb_http.http.content_types import get_content_type
from chdb_http.http.forms import parse_form
from chdb_http.sql.errors import Code, EngineError, from_engine

COMPRESS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.compress,
    "lz4": lz4.frame.compress,
    "identity": bytes,
}


@pytest.mark.parametrize("encoding", COMPRESS)
@given(parts=st.lists(st.binary(min_size=1), min_size=1, max_size=4), size=st.integers(1, 50))
def test_frame_after_frame_in_any_pieces(encoding, parts, size):
    body = b"".join(COMPRESS[encoding](part) for part in parts)
    reader = make_decoder(encoding)
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    assert b"".join(reader.decompress(piece) for piece in pieces) == b"".join(parts)
    reader.finish()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "lz4", None])
@given(parts=st.lists(st.binary(), max_size=4))
def test_encoders_and_decoders_agree(encoding, parts):
    writer, reader = make_encoder(encoding), make_decoder(encoding or "")
    body = b"".join(writer.compress(part) for part in parts) + writer.finish()
    assert reader.decompress(body) == b"".join(parts)
    reader.finish()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "lz4"])
def test_a_bomb_goes_off_a_portion_at_a_time(encoding):
    size, most = 70 << 20, 33 << 20
    body = COMPRESS[encoding](bytes(size)) + COMPRESS[encoding](b"after")

    async def raw():
        yield body

    async def sizes():
        return [(len(each), each[-5:]) async for each in Body(raw(), encoding).read_chunks()]

    found = asyncio.run(sizes())
    assert sum(length for length, _ in found) == size + 5
    assert max(length for length, _ in found) <= most
    assert found[-1][1] == b"after"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "lz4"])
def test_a_cut_body_is_an_error(encoding):
    reader = make_decoder(encoding)
    reader.decompress(COMPRESS[encoding](b"x" * 100)[:-3])
    with pytest.raises(EngineError, match=f"'{encoding}'"):
        reader.finish()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "lz4"])
def test_a_broken_body_is_an_error(encoding):
    with pytest.raises(EngineError, match="Cannot decompress"):
        make_decoder(encoding).decompress(b"these are plain rows, not a frame")


def test_an_unknown_encoding_names_the_known():
    with pytest.raises(EngineError, match=r"'bz3'.*lz4, zstd, gzip, deflate"):
        make_decoder("bz3")


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", None),
        ("identity", None),
        ("br", None),
        ("gzip, deflate", "gzip"),
        ("gzip;q=0, deflate", "deflate"),
        ("gzip;q=1.0, zstd;q=0.5", "zstd"),
        ("LZ4", "lz4"),
    ],
)
def test_choice_of_encoding(accept, chosen):
    assert choose_encoding(accept) == chosen


def test_of_a_million_encodings_the_first_are_looked_at():
    assert choose_encoding("x, " * 99 + "gzip" + ", x" * 1_000_000) == "gzip"
    assert choose_encoding("x, " * 100 + "gzip") is None


@pytest.mark.parametrize(
    ("text", "number", "name", "detail", "status"),
    [
        ("Code: 60. DB::Exception: No t. (UNKNOWN_TABLE)", 60, "UNKNOWN_TABLE", "No t", 404),
        (
            (
                "Streaming failed: Code: 36. DB::Exception: Code: 36. DB::Exception: Bad (x). "
                "(BAD_ARGUMENTS) (version 26.9.2.1). (BAD_ARGUMENTS)"
            ),
            36,
            "BAD_ARGUMENTS",
            "Bad (x)",
            400,
        ),
        ("something else", 1001, "STD_EXCEPTION", None, 500),
    ],
)
def test_errors_of_the_engine(text, number, name, detail, status):
    error = from_engine(RuntimeError(text))
    assert (error.number, error.name, int(error.status)) == (number, name, status)
    assert error.detail == (detail or "std::exception. RuntimeError: something else")
    assert error.render("1.2").endswith(f". ({name}) (version 1.2 (official build))\n")


QUOTED = {"blanks": " ", "brackets": "(", "versions": "(version ", "names": "(A) ", "dots": " ."}


@pytest.mark.parametrize("kind", QUOTED)
def test_an_error_that_quotes_a_long_name_is_read_in_good_time(kind):
    """The time is linear: if quadratic, sixteen times the text would be 256 times the work."""

    def seconds(size):
        quoted = QUOTED[kind] * size
        text = f"Code: 47. DB::Exception: Unknown `{quoted}x`{quoted}. (BAD) (version 1). (BAD)"
        started = time.thread_time()
        error = from_engine(RuntimeError(text))
        assert error.number == 47
        assert error.detail.startswith(f"Unknown `{quoted}x`")
        return time.thread_time() - started

    few = min(seconds(1000) for _ in range(5))
    many = min(seconds(16_000) for _ in range(2))
    assert many < 80 * few + 0.01


def test_own_errors_have_the_server_s_names():
    error = EngineError(Code.SESSION_IS_LOCKED, "Session x is locked")
    assert error.render("1") == (
        "Code: 373. DB::Exception: Session x is locked. (SESSION_IS_LOCKED) "
        "(version 1 (official build))\n"
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("JSON", "application/json; charset=UTF-8"),
        ("JSONEachRow", "application/x-ndjson; charset=UTF-8"),
        ("TSVWithNames", "text/tab-separated-values; charset=UTF-8"),
        ("Native", "application/octet-stream"),
        ("Pretty", "text/plain; charset=UTF-8"),
        (None, "text/plain; charset=UTF-8"),
    ],
)
def test_content_types(name, kind):
    assert get_content_type(name) == kind


def test_a_form():
    body = (
        b'--xx\r\nContent-Disposition: form-data; name="query"\r\n\r\nSELECT 1\r\n'
        b'--xx\r\nContent-Disposition: form-data; name="t"; filename="t.csv"\r\n'
        b"Content-Type: text/csv\r\n\r\n1\r\n--x\r\n\r\n--xx--\r\n"
    )
    query, table = parse_form("multipart/form-data; boundary=xx", body)
    assert (query.name, query.filename, query.data) == ("query", None, b"SELECT 1")
    assert (table.name, table.filename, table.data) == ("t", "t.csv", b"1\r\n--x\r\n")


def test_a_form_without_boundary():
    with pytest.raises(EngineError, match="no boundary"):
        parse_form("multipart/form-data", b"")


@given(
    parts=st.lists(st.tuples(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.binary()), max_size=5)
)
def test_forms_of_any_bytes(parts):
    pieces = [
        b'--xx\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), data)
        for name, data in parts
        if b"\r\n--xx" not in b"\r\n" + data
    ]
    found = parse_form("multipart/form-data; boundary=xx", b"".join([*pieces, b"--xx--\r\n"]))
    assert [part.data for part in found] == [
        data for _, data in parts if b"\r\n--xx" not in b"\r\n" + data
    ]


@pytest.mark.parametrize("size", [(1 << 20) - 60, (1 << 20) - 3, 1 << 20, 3 << 20])
def test_a_long_part_of_a_form_is_whole(size):
    head = b'--xx\r\nContent-Disposition: form-data; name="a"\r\n\r\n'
    body = head + b"x" * size + b"\r\n" + head + b"y\r\n--xx--"
    first, second = parse_form("multipart/form-data; boundary=xx", body)
    assert (len(first.data), second.data) == (size, b"y")


def test_a_header_of_thousands_of_parameters_is_refused():
    name = b'form-data; name="' + b";" * 10_000
    body = b"--x\r\nContent-Disposition: %b\r\n\r\n1\r\n--x--" % name
    for kind, form in (("multipart/form-data; boundary=x", body), (name.decode(), b"")):
        with pytest.raises(EngineError, match=r"has no (name|boundary)"):
            parse_form(kind, form)


def test_a_form_of_thousands_of_parts_is_refused():
    part = b'--xx\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n'
    with pytest.raises(EngineError, match="more than 10000 parts"):
        parse_form("multipart/form-data; boundary=xx", part * 10_001)


@pytest.mark.parametrize(
    "boundary", ["boundary*0*=x", "boundary*" + "9" * 5000 + "=x", "boundary="]
)
def test_a_boundary_that_is_none(boundary):
    with pytest.raises(EngineError, match="no boundary"):
        parse_form(f"multipart/form-data; {boundary}", b"--x--")


@pytest.mark.parametrize(
    ("query_string", "said"),
    [(b"a" * ((1 << 20) + 1), "longer than 1048576 bytes"), (b"a&" * 10_000, "10000 parameters")],
)
def test_a_url_beyond_reason_is_refused(query_string, said):
    with pytest.raises(EngineError, match=said):
        check_url(query_string)


def test_a_message_that_chdb_could_not_read():
    text = b"Code: 47. DB::Exception: Unknown identifier `\xff`. (UNKNOWN_IDENTIFIER)"
    error = from_engine(UnicodeDecodeError("utf-8", text, 45, 46, "invalid start byte"))
    assert (error.number, error.name) == (47, "UNKNOWN_IDENTIFIER")


def _arrow_file(rows: int) -> bytes:
    table = pa.table({"a": pa.array(range(rows), pa.int64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write(table)
    return sink.getvalue().to_pybytes()


async def _joined(body: bytes, size: int) -> bytes:
    async def pieces():
        for at in range(0, len(body), size):
            yield body[at : at + size]

    return b"".join([chunk async for chunk in extract_stream(pieces())])


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000, 1 << 20])
def test_an_arrow_file_is_a_stream(size):
    stream = asyncio.run(_joined(_arrow_file(1000), size))
    assert pa.ipc.open_stream(stream).read_all().num_rows == 1000


@pytest.mark.parametrize("cut", [slice(0, 5), slice(0, 400), slice(8, None), slice(0, 0)])
def test_a_cut_arrow_file_is_refused(cut):
    with pytest.raises(EngineError, match="not a whole Arrow file"):
        asyncio.run(_joined(_arrow_file(1000)[cut], 100))
