"""How the changes of one tenant and range are cut into invocations, and what names each.

The same rows give the same chunks and keys, whatever batches they came in, in whatever order, and
whichever tenants came with them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from iscp_dagster.events.payload import to_json_value

CHANGE, VERSION = "_change", "_version"
"""What happened to the row, and in which commit, beside its columns."""
UPSERT, DELETE = "upsert", "delete"
MOST_BYTES = 1024 * 1024
"""The most bytes of one invocation's rows; a larger row is one by itself."""
_DIGITS = 20


@dataclass(frozen=True, kw_only=True)
class TenantRange:
    """The changes of one tenant and range, all or some of them."""

    table: str
    tenant: str
    from_: int
    """The version after which they begin; -1: before the first."""
    to: int
    snapshot: bool
    """Whether they are all rows, which replace what the handler keeps of the tenant."""


@dataclass(frozen=True, kw_only=True)
class JobIdentity:
    """The invoking job, as its keys identify it: no two jobs have the same key."""

    table_id: str
    job: str
    registration: int
    generation: int


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """The changes of one invocation."""

    changes: TenantRange
    number: int
    """From 0."""
    last: bool
    """Whether no chunk of the part comes after it."""
    rows: int
    body: bytes
    """JSON in UTF-8."""

    def compute_key(self, job_identity: JobIdentity, *, repairs: int = 0) -> str:
        """Its idempotency key: of job, tenant, range and chunk, the chunk by number and content.

        By its number only, rows of a chunk that is cut differently after a change of the
        declaration would count as done. After each of the job's `repairs` it may have another.
        """
        changes = self.changes
        identity = [
            *(
                job_identity.table_id,
                job_identity.job,
                job_identity.registration,
                job_identity.generation,
            ),
            *(changes.tenant, changes.from_, changes.to, changes.snapshot, self.number),
            hashlib.sha256(self.body).hexdigest(),
        ]
        key = f"iscp-{hashlib.sha256(_to_json(identity).encode()).hexdigest()}"
        return f"{key}-{repairs}" if repairs else key


def format_line(row: Mapping[str, Any], version: int, change: str) -> str:
    """One row as text: its sort key, then its JSON. Raises SchemaError naming a column.

    Values have the texts that they have in an event's `data`.
    """
    values = {name: to_json_value(value, column=name) for name, value in row.items()}
    return f"{version:0{_DIGITS}d}{_to_json({**values, CHANGE: change, VERSION: version})}"


def cut_chunks(
    changes: TenantRange, lines: Iterable[str], *, rows: int, most: int = MOST_BYTES
) -> Iterator[Chunk]:
    """Cut sorted `line`s into chunks of at most `rows` rows and `most` bytes.

    A snapshot has at least one chunk, which may be empty: it says that nothing is left.
    """
    number, builder = 0, _ChunkBuilder()
    for line in lines:
        text = line[_DIGITS:]
        if builder.texts and (
            len(builder.texts) >= rows or builder.bytes + len(text.encode()) > most
        ):
            yield builder.build_chunk(changes, number, last=False)
            number, builder = number + 1, _ChunkBuilder()
        builder.add(text)
    if builder.texts or (changes.snapshot and number == 0):
        yield builder.build_chunk(changes, number, last=True)


class _ChunkBuilder:
    """The rows of the next chunk."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.bytes = 0

    def add(self, text: str) -> None:
        self.texts.append(text)
        self.bytes += len(text.encode())

    def build_chunk(self, changes: TenantRange, number: int, *, last: bool) -> Chunk:
        head = {
            "table": changes.table,
            "tenant": changes.tenant,
            "from": changes.from_,
            "to": changes.to,
            "snapshot": changes.snapshot,
            "chunk": number,
            "last": last,
        }
        body = f'{_to_json(head)[:-1]},"rows":[{",".join(self.texts)}]}}'
        return Chunk(
            changes=changes, number=number, last=last, rows=len(self.texts), body=body.encode()
        )


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
