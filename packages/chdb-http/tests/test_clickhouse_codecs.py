"""Encodings, errors, forms and Arrow files of the embedded server."""

from __future__ import annotations

import asyncio
import gzip
import time
import zlib
from contextlib import contextmanager

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
ENCODINGS = ["gzip", "deflate", "zstd", "lz4"]


@contextmanager
def raises_engine_error(code, *values):
    """Expect an EngineError with this code, whose text has these values."""
    with pytest.raises(EngineError) as caught:
        yield
    assert caught.value.number == code
    for value in values:
        assert str(value) in caught.value.detail


@pytest.mark.parametrize("encoding", COMPRESS)
@given(parts=st.lists(st.binary(min_size=1), min_size=1, max_size=4), size=st.integers(1, 50))
def test_frames_are_decompressed_in_any_pieces(encoding, parts, size):
    body = b"".join(COMPRESS[encoding](part) for part in parts)
    reader = make_decoder(encoding)
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    assert b"".join(reader.decompress(piece) for piece in pieces) == b"".join(parts)
    reader.finish()


@pytest.mark.parametrize("encoding", [*ENCODINGS, None])
@given(parts=st.lists(st.binary(), max_size=4))
def test_encoders_and_decoders_agree(encoding, parts):
    writer, reader = make_encoder(encoding), make_decoder(encoding or "")
    body = b"".join(writer.compress(part) for part in parts) + writer.finish()
    assert reader.decompress(body) == b"".join(parts)
    reader.finish()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_bomb_is_decompressed_in_bounded_chunks(encoding):
    size, most = 70 << 20, 33 << 20
    body = COMPRESS[encoding](bytes(size)) + COMPRESS[encoding](b"after")

    async def send():
        yield body

    async def read():
        return [(len(chunk), chunk[-5:]) async for chunk in Body(send(), encoding).read_chunks()]

    chunks = asyncio.run(read())
    assert sum(length for length, _ in chunks) == size + 5
    assert max(length for length, _ in chunks) <= most
    assert chunks[-1][1] == b"after"


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_cut_or_broken_body_is_an_error(encoding):
    reader = make_decoder(encoding)
    reader.decompress(COMPRESS[encoding](b"x" * 100)[:-3])
    with raises_engine_error(Code.CANNOT_DECOMPRESS, f"'{encoding}'"):
        reader.finish()
    with raises_engine_error(Code.CANNOT_DECOMPRESS, f"'{encoding}'"):
        make_decoder(encoding).decompress(b"these are plain rows, not a frame")


def test_an_unknown_encoding_is_refused_with_the_known_ones():
    with raises_engine_error(Code.NOT_IMPLEMENTED, "'bz3'", "lz4, zstd, gzip, deflate"):
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
def test_the_encoding_of_an_answer_is_chosen_by_the_client(accept, chosen):
    assert choose_encoding(accept) == chosen


def test_of_a_million_encodings_the_first_hundred_are_read():
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
            *(36, "BAD_ARGUMENTS", "Bad (x)", 400),
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
def test_an_error_that_quotes_a_long_name_is_read_in_linear_time(kind):
    """If the time were quadratic, sixteen times the text would take 256 times as long."""

    def measure(size):
        quoted = QUOTED[kind] * size
        text = f"Code: 47. DB::Exception: Unknown `{quoted}x`{quoted}. (BAD) (version 1). (BAD)"
        started = time.thread_time()
        error = from_engine(RuntimeError(text))
        assert error.number == 47
        assert error.detail.startswith(f"Unknown `{quoted}x`")
        return time.thread_time() - started

    short = min(measure(1000) for _ in range(5))
    long = min(measure(16_000) for _ in range(2))
    assert long < 80 * short + 0.01


def test_an_error_has_the_server_s_name_for_its_code():
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


@pytest.mark.parametrize(
    "kind",
    [
        *("multipart/form-data", "multipart/form-data; boundary="),
        *("multipart/form-data; boundary*0*=x", f"multipart/form-data; boundary*{'9' * 5000}=x"),
        f'form-data; name="{";" * 10_000}',
    ],
    ids=["none", "empty", "continued", "a long number", "thousands of parameters"],
)
def test_a_form_without_a_boundary_is_refused(kind):
    with raises_engine_error(Code.BAD_ARGUMENTS, "Content-Type", "boundary"):
        parse_form(kind, b"--x--")


@given(
    parts=st.lists(st.tuples(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.binary()), max_size=5)
)
def test_forms_of_any_bytes(parts):
    parts = [(name, data) for name, data in parts if b"\r\n--xx" not in b"\r\n" + data]
    pieces = [
        b'--xx\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), data)
        for name, data in parts
    ]
    form = parse_form("multipart/form-data; boundary=xx", b"".join([*pieces, b"--xx--\r\n"]))
    assert [part.data for part in form] == [data for _, data in parts]


@pytest.mark.parametrize("size", [(1 << 20) - 60, (1 << 20) - 3, 1 << 20, 3 << 20])
def test_a_long_part_of_a_form_is_read_completely(size):
    head = b'--xx\r\nContent-Disposition: form-data; name="a"\r\n\r\n'
    body = head + b"x" * size + b"\r\n" + head + b"y\r\n--xx--"
    first, second = parse_form("multipart/form-data; boundary=xx", body)
    assert (len(first.data), second.data) == (size, b"y")


def test_a_part_with_thousands_of_parameters_is_refused():
    name = b'form-data; name="' + b";" * 10_000
    body = b"--x\r\nContent-Disposition: %b\r\n\r\n1\r\n--x--" % name
    with raises_engine_error(Code.BAD_ARGUMENTS, "part", "name"):
        parse_form("multipart/form-data; boundary=x", body)


def test_a_form_of_thousands_of_parts_is_refused():
    part = b'--xx\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n'
    with raises_engine_error(Code.BAD_ARGUMENTS, 10_000):
        parse_form("multipart/form-data; boundary=xx", part * 10_001)


@pytest.mark.parametrize(
    ("query_string", "bound"),
    [(b"a" * ((1 << 20) + 1), "1048576 bytes"), (b"a&" * 10_000, "10000 parameters")],
)
def test_an_overlong_url_is_refused(query_string, bound):
    with raises_engine_error(Code.BAD_ARGUMENTS, bound):
        check_url(query_string)


def test_an_error_is_read_that_chdb_could_not_decode():
    text = b"Code: 47. DB::Exception: Unknown identifier `\xff`. (UNKNOWN_IDENTIFIER)"
    error = from_engine(UnicodeDecodeError("utf-8", text, 45, 46, "invalid start byte"))
    assert (error.number, error.name) == (47, "UNKNOWN_IDENTIFIER")


def make_arrow_file():
    table = pa.table({"a": pa.array(range(1000), pa.int64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write(table)
    return sink.getvalue().to_pybytes()


def extract(body, size):
    """The stream in an Arrow file that comes in pieces of this size."""

    async def send():
        for at in range(0, len(body), size):
            yield body[at : at + size]

    async def read():
        return b"".join([chunk async for chunk in extract_stream(send())])

    return asyncio.run(read())


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000, 1 << 20])
def test_an_arrow_file_is_read_as_a_stream(size):
    stream = extract(make_arrow_file(), size)
    assert pa.ipc.open_stream(stream).read_all().num_rows == 1000


@pytest.mark.parametrize("cut", [slice(0, 5), slice(0, 400), slice(8, None), slice(0, 0)])
def test_a_cut_arrow_file_is_refused(cut):
    with raises_engine_error(Code.INCORRECT_DATA, "ARROW1"):
        extract(make_arrow_file()[cut], 100)
