"""Texts of a change feed that may be others in the source.

Delta makes Java strings of its feed's rows, in which U+FFFD stands for bytes that are not UTF-8. A
snapshot has the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.model.errors import FeedGoneError

REPLACEMENT = "\ufffd".encode()


def refuse_replaced(chunk: pa.Table) -> None:
    """Refuse a chunk of changes that may have lost bytes. Raises FeedGoneError."""
    for name in chunk.schema.names:
        for values in chunk[name].chunks:
            if any(_is_in(texts) for texts in _texts(values)):
                raise FeedGoneError(
                    f"Column {name!r} has the character U+FFFD in the changes, which stands there "
                    "for bytes that are not UTF-8 too; a snapshot has the bytes."
                )


def _is_in(texts: pa.Array) -> bool:
    found = pc.match_substring(texts.cast(pa.binary()), REPLACEMENT)
    return pc.any(found).as_py() is True


def _texts(values: pa.Array) -> Iterator[pa.Array]:
    """The texts at any depth; of a slice perhaps its neighbours' too."""
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        yield values
    elif pa.types.is_map(values.type):
        yield from _texts(values.keys)
        yield from _texts(values.items)
    elif pa.types.is_list(values.type):
        yield from _texts(values.flatten())
    elif pa.types.is_struct(values.type):
        for part in values.flatten():
            yield from _texts(part)
