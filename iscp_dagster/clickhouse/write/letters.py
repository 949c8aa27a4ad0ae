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
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.engines import render_replacing_engine
from iscp_dagster.clickhouse.connect.portions import split_names
from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.clickhouse.connect.table_barrier import TableBarrier
from iscp_dagster.clickhouse.types.formatting import format_row
from iscp_dagster.clickhouse.write.chunks import hash_rows
from iscp_dagster.clickhouse.write.inserts import insert
from iscp_dagster.clickhouse.write.targets import Target
from iscp_dagster.model.batch import Range
from iscp_dagster.model.clock import Clock, get_utc_now
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

    endpoint: ClickHouseEndpoint
    database: str
    sleep: Callable[[float], None] = time.sleep
    clock: Clock = get_utc_now

    def ensure(self) -> None:
        """Create the table if it is missing, with a barrier."""
        barrier = Barrier.create_initial(self.clock()).render_constraint(_OWNER)
        columns = ",\n    ".join(
            f"{quote_identifier(name)} {type_}" for name, type_ in _COLUMNS.items()
        )
        self._run_statement(f"CREATE DATABASE IF NOT EXISTS {quote_identifier(self.database)}")
        self._run_statement(
            f"CREATE TABLE IF NOT EXISTS {self._quoted_name} (\n    {columns},\n    {barrier}\n) "
            f"ENGINE = {render_replacing_engine('at')} ORDER BY (index, tenant, version, id)"
        )

    def read_epoch(self) -> int:
        """Return the epoch that a letter must show; see `TableBarrier.read_epoch`."""
        return self._barrier.read_epoch()

    def reject_earlier_inserts(self, index: str, tenants: Collection[str]) -> int:
        """Reject these tenants' letters that show an earlier epoch; return the new epoch."""
        return self._barrier.reject_earlier_inserts(
            [_format_owner(index, tenant) for tenant in tenants]
        )

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

        `registrations` has the jobs' registrations, by tenant.
        """
        occurrences: Counter[str] = Counter()
        # Without a key, their task and chunk distinguish equal rows.
        origin = [] if target.keys else [task, chunk]
        rows = []
        for refusal in refusals:
            text = to_json(refusal.row, target)
            tenant = get_tenant(refusal.row, target)
            registration = registrations[tenant]
            occurrences[text] += 1
            rows.append(
                {
                    "id": make_letter_id(
                        target, refusal.row, [registration, text, *origin, occurrences[text]]
                    ),
                    "index": target.name,
                    "tenant": tenant,
                    "job_id": registration,
                    "from_version": range_.from_.version,
                    "to_version": range_.to.version,
                    "task": task,
                    "chunk": chunk,
                    "deleted": bool(refusal.row[DELETED][0].as_py()),
                    "code": refusal.error.code,
                    "reason": str(refusal.error),
                    "row": text,
                    "arrow": to_arrow(refusal.row),
                    "version": refusal.row[VERSION][0].as_py(),
                    "timestamp": refusal.row[TIMESTAMP].cast(pa.int64())[0].as_py(),
                }
            )
        return self._insert_rows(target, rows)

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
                "id": _hash_parts([target.name, tenant, registrations[tenant], *ends]),
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
        self._insert_rows(target, rows)

    def _insert_rows(self, target: Target, rows: Sequence[Mapping[str, Any]]) -> bool:
        stamps, epoch = pa.timestamp("us", tz="UTC"), target.epochs.letters
        owned_rows = [
            {**row, _OWNER: _format_owner(row["index"], row["tenant"]), "epoch": epoch}
            for row in rows
        ]
        table = pa.Table.from_pylist(owned_rows)
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

    def list_letters(
        self, *, index: str | None = None, tenant: str | None = None, ids: Sequence[str] = ()
    ) -> list[DeadLetter]:
        """Return the letters, sorted by index and tenant; `ids` may be prefixes."""
        where, parameters = _build_filter(index, tenant, ids)
        columns = ", ".join(map(quote_identifier, _SHOWN))
        order = "ORDER BY index, tenant, version, id"
        query = f"SELECT {columns} FROM {self._quoted_name} FINAL {where} {order}"
        if not self._has_table():
            return []
        with self.endpoint.translate_errors("read the dead letters"):
            rows = self._run_query(query, parameters).named_results()
            return [DeadLetter(registration=row.pop("job_id"), **row) for row in rows]

    def read_rows(self, letters: Sequence[DeadLetter]) -> list[pa.Table]:
        """Return the row of each letter, as it was refused."""
        where, parameters = _build_filter(None, None, [letter.id for letter in letters])
        query = f"SELECT id, base64Encode(arrow) FROM {self._quoted_name} FINAL {where}"
        with self.endpoint.translate_errors("read the dead letters"):
            arrow_by_id = dict(self._run_query(query, parameters).result_rows)
        return [_from_arrow(base64.b64decode(arrow_by_id[letter.id])) for letter in letters]

    def _run_query(self, query: str, parameters: dict[str, Any]) -> QueryResult:
        """Run a query that sees every confirmed letter, whichever replica answers."""
        settings = self.endpoint.read_settings
        return self.endpoint.get_client().query(query, parameters=parameters, settings=settings)

    def drop(self, letters: Sequence[DeadLetter]) -> None:
        """Delete the letters as they were found; one written since under a later epoch stays."""
        if letters:
            ids, epoch = [letter.id for letter in letters], max(letter.epoch for letter in letters)
            self._delete_where("id IN {ids:Array(String)}", epoch, ids=ids)

    def drop_tenants(self, index: str, tenants: Collection[str]) -> None:
        """Delete tenants' letters, and reject those in flight; `index` as in `DeadLetter.index`."""
        if not self._has_table():
            return
        epoch = self.reject_earlier_inserts(index, tenants)
        for portion in split_names(sorted(tenants)):
            condition = "index = {index:String} AND tenant IN {tenants:Array(String)}"
            self._delete_where(condition, epoch, index=index, tenants=portion)

    def drop_earlier_builds(
        self, target: Target, registrations: Mapping[str, int], *, version: int
    ) -> None:
        """Delete letters of tenants that were rebuilt, except rows that these builds refused.

        `registrations` has their jobs' registrations, by tenant.
        """
        self._delete_for_jobs(f"NOT ({_OF_BUILD})", target, registrations, version=version)

    def drop_staged(
        self, target: Target, registrations: Mapping[str, int], *, version: int
    ) -> None:
        """Delete letters of an earlier attempt at building tenants as of `version`."""
        self._delete_for_jobs(_OF_BUILD, target, registrations, version=version)

    def _delete_for_jobs(
        self, condition: str, target: Target, registrations: Mapping[str, int], *, version: int
    ) -> None:
        for portion in split_names(sorted(registrations)):
            self._delete_where(
                f"index = {{index:String}} AND tenant IN {{tenants:Array(String)}} AND {condition}",
                target.epochs.letters,
                index=target.name,
                tenants=portion,
                jobs=[(tenant, registrations[tenant]) for tenant in portion],
                version=version,
            )

    def _delete_where(self, where: str, epoch: int, **parameters: Any) -> None:
        if not self._has_table():
            return
        # The next reader must not see them, so wait until they are gone.
        with self.endpoint.translate_errors(f"delete from {self.database}.{TABLE}"):
            self.endpoint.get_client().command(
                f"ALTER TABLE {self._quoted_name} DELETE WHERE {where} AND epoch <= "
                f"{{epoch:UInt64}}",
                parameters=parameters | {"epoch": epoch},
                settings={"mutations_sync": 2},
            )

    def _has_table(self) -> bool:
        query = (
            "SELECT count() FROM system.tables WHERE database = {db:String} AND name = {t:String}"
        )
        with self.endpoint.translate_errors("look for the dead letters"):
            result = self.endpoint.get_client().query(query, {"db": self.database, "t": TABLE})
        return bool(result.result_rows[0][0])

    def _run_statement(self, statement: str) -> None:
        with self.endpoint.translate_errors(statement.partition("(")[0].strip()):
            self.endpoint.get_client().command(statement)

    @property
    def _barrier(self) -> TableBarrier:
        return TableBarrier(
            endpoint=self.endpoint,
            database=self.database,
            table=TABLE,
            column=_OWNER,
            sleep=self.sleep,
        )

    @property
    def _quoted_name(self) -> str:
        return quote_identifier(self.database, TABLE)


def _format_owner(index: str, tenant: str) -> str:
    return f"{index} {tenant}"


def get_tenant(row: pa.Table, target: Target) -> str:
    if target.tenant is None:
        return DEFAULT_TENANT
    return str(pc.cast(row[target.tenant], pa.string())[0].as_py())


def hash_key(row: pa.Table, target: Target) -> str | None:
    """Hash the columns that identify the row in its index; None without a key."""
    return hash_rows(row.select(list(target.identity))) if target.keys else None


def to_json(row: pa.Table, target: Target) -> str:
    """Show the row's own columns to a person."""
    selected = row.select(list(target.columns))
    try:
        (values,) = selected.to_pylist()
    except UnicodeDecodeError:
        values = {name: format_row(selected.select([name])) for name in target.columns}
    return json.dumps(values, default=_to_text, ensure_ascii=False)


def to_arrow(row: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as stream:
        stream.write_table(row)
    return bytes(sink.getvalue())


def make_letter_id(target: Target, row: pa.Table, parts: Sequence[Any]) -> str:
    """Return an id that stays the same for the row; `parts` distinguish it from other rows."""
    version = row[VERSION][0].as_py()
    identity = [target.name, get_tenant(row, target), version, *parts]
    return _hash_parts(identity)


def _hash_parts(parts: Sequence[Any]) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()


def _from_arrow(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()


def _build_filter(
    index: str | None, tenant: str | None, ids: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    conditions = {
        "index = {index:String}": index,
        "tenant = {tenant:String}": tenant,
        "arrayExists(head -> startsWith(id, head), {ids:Array(String)})": list(ids) or None,
    }
    clauses = [text for text, value in conditions.items() if value is not None]
    parameters = {"index": index, "tenant": tenant, "ids": list(ids)}
    return (f"WHERE {' AND '.join(clauses)}" if clauses else ""), parameters


def _to_text(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
