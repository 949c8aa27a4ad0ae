"""Deduplication tokens: one name for one chunk of rows, whoever writes it and however often."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection

from iscp_dagster.model.batch import Range

_DIGEST_BYTES = 16


def make_chunk_token(  # noqa: PLR0917
    registration: int,
    tenants: Collection[str],
    range_: Range,
    task_no: int,
    chunk_no: int,
    content_digest: str,
    build: str = "",
) -> str:
    """The `insert_deduplication_token` of a chunk: 32 hexadecimal digits, stable for ever.

    ClickHouse drops an insert whose token it has seen, whatever its rows; so the content's
    digest is part of the token, and a replay that reads other rows is not dropped. `range_` is
    the range of the step being written, not of the iteration. `build` identifies the batch's
    build: a rebuilt index lost the earlier rows, so it must accept them again.
    """
    versions = [range_.from_.version, range_.to.version]
    identity = [registration, sorted(tenants), versions, task_no, chunk_no, content_digest]
    identity += [build] if build else []
    text = json.dumps(identity, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
