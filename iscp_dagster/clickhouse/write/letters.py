"""Dead letters: rows that an index could not take, kept beside it until a person decides.

Each database has one table, `iscp_dead_letters`. A letter's id is made from its row, so writing it
again changes nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.clickhouse.connect.barrier import Barrier
from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.connect.engines import last_rows
from iscp_dagster.clickhouse.connect.gate import Gate
from iscp_dagster.clickhouse.connect.portions import portions
from iscp_dagster.clickhouse.connect.quoting import ident
from iscp_dagster.clickhouse.types.shown import row_shown
from iscp_dagster.clickhouse.write.chunks import digest
from iscp_dagster.clickhouse.write.inserts import insert
from iscp_dagster.clickhouse.write.targets import Target
from iscp_dagster.model.batch import Range
from iscp_dagster.model.clock import Clock, utc_now
from iscp_dagster.model.declared.schema import DELETED, TIMESTAMP, VERSION
from iscp_dagster.model.declared.tables import DEFAULT_TENANT
from iscp_dagster.model.errors import IscpError

if TYPE_CHECKING:
    from clickhouse_connect.driver.query import QueryResult

TABLE = "iscp_dead_letters"
_OWNER = "owner"
_COLUMNS = {
    "id": "String COMMENT 'made from the row: the same row has the same id'",
    "index": "String COMMENT 'database.table/job'",
    "tenant": "String",
    "job_id": "Int64",
    "from_version": "Int64 COMMENT 'the range starts after this version'",
    "to_version": "Int64",
    "task": "UInt32",
    "chunk": "UInt32",
    "deleted": "Bool COMMENT 'the source has deleted the row'",
    "code": "UInt32",
    "reason": "String",
    "row": "String COMMENT 'JSON, to read; empty for a whole range'",
    "owner": "String COMMENT 'index and tenant, which the barrier tells apart'",
    "epoch": "UInt64 COMMENT 'the epoch shown to the barrier'",
    "arrow": "String COMMENT 'an Arrow stream of the row, to replay'",
    "version": "Int64 COMMENT 'the commit that wrote the row'",
    "timestamp": "DateTime64(6, 'UTC') COMMENT 'of that commit'",
    "at": "DateTime64(6, 'UTC') DEFAULT now64(6)",
}
_OF_BUILD = (
    "(tenant, job_id) IN {jobs:Array(Tuple(String, Int64))} "
    "AND version = {version:Int64} AND row != ''"
)
"""Matches rows that were refused while jobs were built as of a version."""
_SHOWN = [name for name in _COLUMNS if name not in {"arrow", "owner"}]


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A row that an index could not take, and why. `row` is its JSON; empty: the whole range."""

    id: str
    index: str
    tenant: str
    registration: int
    from_version: int
    to_version: int
    task: int
    chunk: int
    deleted: bool
    code: int
    reason: str
    row: str
    version: int
    timestamp: datetime
    at: datetime
    epoch: int

    @property
    def whole_range(self) -> bool:
        """Whether it stands for the tenant's whole range, not for one row."""
        return not self.row


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A refused row, as a table of one row with its system columns, and the error."""

    row: pa.Table
    error: IscpError


@dataclass(frozen=True, kw_only=True)
class DeadLetters:
    """The dead letters of one database. Every method may be repeated.

    Writes show an epoch to a barrier, as rows do; deletes take only letters up to an epoch that was
    read. So neither changes what was written later, however late it lands.
    """

    endpoint: Endpoint
    database: str
    sleep: Callable[[float], None] = time.sleep
    clock: Clock = utc_now

    def ensure(self) -> None:
        """Create the table if it is missing, with a barrier."""
        barrier = Barrier.first(self.clock()).sql(_OWNER)
        columns = ",\n    ".join(f"{ident(name)} {type_}" for name, type_ in _COLUMNS.items())
        self._run(f"CREATE DATABASE IF NOT EXISTS {ident(self.database)}")
        self._run(
            f"CREATE TABLE IF NOT EXISTS {self._name} (\n    {columns},\n    {barrier}\n) "
            f"ENGINE = {last_rows('at')} ORDER BY (index, tenant, version, id)"
        )

    def epoch(self) -> int:
        """Return the epoch that a letter must show; see `Gate.epoch`."""
        return self._gate.epoch()

    def shut_out(self, index: str, tenants: Collection[str]) -> int:
        """Reject these tenants' letters that show an earlier epoch; return the new epoch."""
        return self._gate.shut_out([_owner(index, tenant) for tenant in tenants])

    def write(
        self,
        target: Target,
        refusals: Sequence[Refusal],
        *,
        registrations: Mapping[str, int],
        range_: Range,
        task: int,
        chunk: int,
    ) -> bool:
        """Write one chunk's refused rows; return whether they were sent again. Raises IscpError.

        `registrations` are those of the jobs, by tenant.
        """
        seen: Counter[str] = Counter()
        # Without a key, equal rows are told apart by their task and chunk.
        place = [] if target.keys else [task, chunk]
        rows = []
        for each in refusals:
            text = as_json(each.row, target)
            tenant = tenant_of(each.row, target)
            registration = registrations[tenant]
            seen[text] += 1
            rows.append(
                {
                    "id": letter_id(target, each.row, [registration, text, *place, seen[text]]),
                    "index": target.name,
                    "tenant": tenant,
                    "job_id": registration,
                    "from_version": range_.from_.version,
                    "to_version": range_.to.version,
                    "task": task,
                    "chunk": chunk,
                    "deleted": bool(each.row[DELETED][0].as_py()),
                    "code": each.error.code,
                    "reason": str(each.error),
                    "row": text,
                    "arrow": as_arrow(each.row),
                    "version": each.row[VERSION][0].as_py(),
                    "timestamp": each.row[TIMESTAMP].cast(pa.int64())[0].as_py(),
                }
            )
        return self._insert(target, rows)

    def write_range(
        self,
        target: Target,
        errors: Mapping[str, IscpError],
        *,
        registrations: Mapping[str, int],
        range_: Range,
    ) -> None:
        """Write that these tenants' range may be in the index only in part. Raises IscpError."""
        ends = [range_.from_.version, range_.to.version]
        rows = [
            {
                "id": _hashed([target.name, tenant, registrations[tenant], *ends]),
                "index": target.name,
                "tenant": tenant,
                "job_id": registrations[tenant],
                "from_version": ends[0],
                "to_version": ends[1],
                "task": 0,
                "chunk": 0,
                "deleted": False,
                "code": error.code,
                "reason": str(error),
                "row": "",
                "arrow": b"",
                "version": ends[1],
                "timestamp": range_.to.micros,
            }
            for tenant, error in errors.items()
        ]
        self._insert(target, rows)

    def _insert(self, target: Target, rows: Sequence[Mapping[str, Any]]) -> bool:
        stamps, epoch = pa.timestamp("us", tz="UTC"), target.epochs.letters
        barred = [
            {**row, _OWNER: _owner(row["index"], row["tenant"]), "epoch": epoch} for row in rows
        ]
        table = pa.Table.from_pylist(barred)
        at = table.schema.get_field_index("timestamp")
        table = table.set_column(at, "timestamp", table["timestamp"].cast(stamps))
        # No two writes share a token: a letter that was dropped may be written again.
        token = secrets.token_hex(16)
        name = f"dead letters of {self.database}"
        return insert(
            self.endpoint,
            self.database,
            TABLE,
            table,
            token=token,
            name=name,
            epoch=epoch,
            sleep=self.sleep,
        )

    def found(
        self, *, index: str | None = None, tenant: str | None = None, ids: Sequence[str] = ()
    ) -> list[DeadLetter]:
        """Return the letters, sorted by index and tenant; `ids` may be prefixes."""
        where, parameters = _chosen(index, tenant, ids)
        columns = ", ".join(map(ident, _SHOWN))
        order = "ORDER BY index, tenant, version, id"
        query = f"SELECT {columns} FROM {self._name} FINAL {where} {order}"
        if not self._there():
            return []
        with self.endpoint.errors("read the dead letters"):
            rows = self._query(query, parameters).named_results()
            return [DeadLetter(registration=row.pop("job_id"), **row) for row in rows]

    def rows(self, letters: Sequence[DeadLetter]) -> list[pa.Table]:
        """Return the row of each letter, as it was refused."""
        where, parameters = _chosen(None, None, [each.id for each in letters])
        query = f"SELECT id, base64Encode(arrow) FROM {self._name} FINAL {where}"
        with self.endpoint.errors("read the dead letters"):
            held = dict(self._query(query, parameters).result_rows)
        return [_from_arrow(base64.b64decode(held[each.id])) for each in letters]

    def _query(self, query: str, parameters: dict[str, Any]) -> QueryResult:
        """Run a query that sees every confirmed letter, whichever replica answers."""
        settings = self.endpoint.read_settings
        return self.endpoint.client().query(query, parameters=parameters, settings=settings)

    def drop(self, letters: Sequence[DeadLetter]) -> None:
        """Delete the letters as they were found; one written since under a later epoch stays."""
        if letters:
            ids, epoch = [each.id for each in letters], max(each.epoch for each in letters)
            self._delete("id IN {ids:Array(String)}", epoch, ids=ids)

    def drop_tenants(self, index: str, tenants: Collection[str]) -> None:
        """Delete tenants' letters, and reject those in flight; `index` is as letters name it."""
        if not self._there():
            return
        epoch = self.shut_out(index, tenants)
        for some in portions(sorted(tenants)):
            which = "index = {index:String} AND tenant IN {tenants:Array(String)}"
            self._delete(which, epoch, index=index, tenants=some)

    def drop_older(self, target: Target, registrations: Mapping[str, int], *, version: int) -> None:
        """Delete letters of tenants that were rebuilt, except rows that these builds refused.

        `registrations` are those of their jobs, as in `drop_staged`.
        """
        self._delete_built(f"NOT ({_OF_BUILD})", target, registrations, version=version)

    def drop_staged(
        self, target: Target, registrations: Mapping[str, int], *, version: int
    ) -> None:
        """Delete letters of an earlier attempt at building tenants as of `version`."""
        self._delete_built(_OF_BUILD, target, registrations, version=version)

    def _delete_built(
        self, which: str, target: Target, registrations: Mapping[str, int], *, version: int
    ) -> None:
        for some in portions(sorted(registrations)):
            self._delete(
                f"index = {{index:String}} AND tenant IN {{tenants:Array(String)}} AND {which}",
                target.epochs.letters,
                index=target.name,
                tenants=some,
                jobs=[(tenant, registrations[tenant]) for tenant in some],
                version=version,
            )

    def _delete(self, where: str, epoch: int, **parameters: Any) -> None:
        if not self._there():
            return
        # The next reader must not see them, so wait until they are gone.
        with self.endpoint.errors(f"delete from {self.database}.{TABLE}"):
            self.endpoint.client().command(
                f"ALTER TABLE {self._name} DELETE WHERE {where} AND epoch <= {{epoch:UInt64}}",
                parameters=parameters | {"epoch": epoch},
                settings={"mutations_sync": 2},
            )

    def _there(self) -> bool:
        query = (
            "SELECT count() FROM system.tables WHERE database = {db:String} AND name = {t:String}"
        )
        with self.endpoint.errors("look for the dead letters"):
            found = self.endpoint.client().query(query, {"db": self.database, "t": TABLE})
        return bool(found.result_rows[0][0])

    def _run(self, statement: str) -> None:
        with self.endpoint.errors(statement.partition("(")[0].strip()):
            self.endpoint.client().command(statement)

    @property
    def _gate(self) -> Gate:
        return Gate(
            endpoint=self.endpoint,
            database=self.database,
            table=TABLE,
            column=_OWNER,
            sleep=self.sleep,
        )

    @property
    def _name(self) -> str:
        return ident(self.database, TABLE)


def _owner(index: str, tenant: str) -> str:
    return f"{index} {tenant}"


def tenant_of(row: pa.Table, target: Target) -> str:
    if target.tenant is None:
        return DEFAULT_TENANT
    return str(pc.cast(row[target.tenant], pa.string())[0].as_py())


def key_of(row: pa.Table, target: Target) -> str | None:
    """Hash the columns that identify the row in its index; None without a key."""
    return digest(row.select(list(target.identity))) if target.keys else None


def as_json(row: pa.Table, target: Target) -> str:
    """Show the row's own columns to a person."""
    own = row.select(list(target.columns))
    try:
        (values,) = own.to_pylist()
    except UnicodeDecodeError:
        values = {name: row_shown(own.select([name])) for name in target.columns}
    return json.dumps(values, default=_as_text, ensure_ascii=False)


def as_arrow(row: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as stream:
        stream.write_table(row)
    return bytes(sink.getvalue())


def letter_id(target: Target, row: pa.Table, parts: Sequence[Any]) -> str:
    """Return an id that stays the same for the row; `parts` tell it from other rows."""
    version = row[VERSION][0].as_py()
    told = [target.name, tenant_of(row, target), version, *parts]
    return _hashed(told)


def _hashed(parts: Sequence[Any]) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()


def _from_arrow(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()


def _chosen(
    index: str | None, tenant: str | None, ids: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    conditions = {
        "index = {index:String}": index,
        "tenant = {tenant:String}": tenant,
        "arrayExists(head -> startsWith(id, head), {ids:Array(String)})": list(ids) or None,
    }
    named = [text for text, value in conditions.items() if value is not None]
    parameters = {"index": index, "tenant": tenant, "ids": list(ids)}
    return (f"WHERE {' AND '.join(named)}" if named else ""), parameters


def _as_text(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
