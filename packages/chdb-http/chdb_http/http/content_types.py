"""The Content-Type of an output format, as ClickHouse's formats name theirs."""

from __future__ import annotations

_TEXT = "text/plain; charset=UTF-8"
_BYTES = "application/octet-stream"
_JSON = "application/json; charset=UTF-8"
_JSON_ROWS = "application/x-ndjson; charset=UTF-8"
_BINARY = (
    *("native", "rowbinary", "arrow", "parquet", "orc", "avro", "msgpack", "protobuf"),
    *("bsoneachrow", "capnproto", "npy"),
)
_PREFIXES = (
    ("jsoneachrow", _JSON_ROWS),
    ("jsonlines", _JSON_ROWS),
    ("ndjson", _JSON_ROWS),
    ("jsoncompacteachrow", _JSON_ROWS),
    ("jsonstringseachrow", _JSON_ROWS),
    ("jsoncompactstringseachrow", _JSON_ROWS),
    ("json", _JSON),
    ("csv", "text/csv; charset=UTF-8"),
    ("tabseparated", "text/tab-separated-values; charset=UTF-8"),
    ("tsv", "text/tab-separated-values; charset=UTF-8"),
    ("xml", "application/xml; charset=UTF-8"),
    *((name, _BYTES) for name in _BINARY),
)


def get_content_type(output_format: str | None) -> str:
    """The type of a result in this format; None is a response without a result."""
    name = (output_format or "").lower()
    return next(
        (content_type for prefix, content_type in _PREFIXES if name.startswith(prefix)), _TEXT
    )
