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

from iscp_dagster.events.payload import json_value

CHANGE, VERSION = "_change", "_version"
"""What happened to the row, and in which commit, beside its columns."""
UPSERT, DELETE = "upsert", "delete"
MOST_BYTES = 1024 * 1024
"""The most bytes of one invocation's rows; a larger row is one by itself."""
_DIGITS = 20


@dataclass(frozen=True, kw_only=True)
class Part:
    """The changes of one tenant and range, all or some of them."""

    table: str
    tenant: str
    from_: int
    """The version after which they begin; -1: at the first."""
    to: int
    snapshot: bool
    """Whether they are all rows, which replace what the handler keeps of the tenant."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The job that invokes, as its keys name it: another one's keys never equal its."""

    table_id: str
    job: str
    registration: int
    generation: int


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """What one invocation is given."""

    part: Part
    number: int
    """From 0."""
    last: bool
    """Whether no chunk of the part comes after it."""
    rows: int
    body: bytes
    """JSON in UTF-8."""

    def key(self, owner: Owner, *, repairs: int = 0) -> str:
        """Its idempotency key: of job, tenant, range and chunk, the chunk by number and content.

        By its number alone, rows of a chunk that is cut otherwise after a change of the
        declaration would count as done. After each of the job's `repairs` it may have another.
        """
        part = self.part
        named = [
            *(owner.table_id, owner.job, owner.registration, owner.generation),
            *(part.tenant, part.from_, part.to, part.snapshot, self.number),
            hashlib.sha256(self.body).hexdigest(),
        ]
        key = f"iscp-{hashlib.sha256(_json(named).encode()).hexdigest()}"
        return f"{key}-{repairs}" if repairs else key


def line(row: Mapping[str, Any], version: int, change: str) -> str:
    """One row as text: how it sorts, then its JSON. Raises SchemaError naming a column.

    Values have the texts that they have in an event's `data`.
    """
    said = {name: json_value(value, at=name) for name, value in row.items()}
    return f"{version:0{_DIGITS}d}{_json({**said, CHANGE: change, VERSION: version})}"


def chunks(
    part: Part, lines: Iterable[str], *, rows: int, most: int = MOST_BYTES
) -> Iterator[Chunk]:
    """Cut sorted `line`s into chunks of at most `rows` rows and `most` bytes.

    A snapshot has at least one chunk, which may be empty: it says that nothing is left.
    """
    number, held = 0, _Held()
    for each in lines:
        text = each[_DIGITS:]
        if held.texts and (len(held.texts) >= rows or held.bytes + len(text.encode()) > most):
            yield held.chunk(part, number, last=False)
            number, held = number + 1, _Held()
        held.add(text)
    if held.texts or (part.snapshot and number == 0):
        yield held.chunk(part, number, last=True)


class _Held:
    """The rows of the next chunk."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.bytes = 0

    def add(self, text: str) -> None:
        self.texts.append(text)
        self.bytes += len(text.encode())

    def chunk(self, part: Part, number: int, *, last: bool) -> Chunk:
        head = {
            "table": part.table,
            "tenant": part.tenant,
            "from": part.from_,
            "to": part.to,
            "snapshot": part.snapshot,
            "chunk": number,
            "last": last,
        }
        body = f'{_json(head)[:-1]},"rows":[{",".join(self.texts)}]}}'
        return Chunk(part=part, number=number, last=last, rows=len(self.texts), body=body.encode())


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
