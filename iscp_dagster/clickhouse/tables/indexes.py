"""One index's tables, as the control plane sees them: prepare, publish, drop, count."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from iscp_dagster.clickhouse.connect import failures
from iscp_dagster.clickhouse.connect.barrier import Barrier, Epochs, shown
from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.connect.external import external
from iscp_dagster.clickhouse.connect.gate import Gate
from iscp_dagster.clickhouse.connect.portions import portions
from iscp_dagster.clickhouse.connect.quoting import ident, text
from iscp_dagster.clickhouse.tables.ddl import SETTINGS, IndexTable
from iscp_dagster.clickhouse.tables.generations import IndexData, read_generation
from iscp_dagster.clickhouse.tables.owned import Existing, check_owned, namesakes
from iscp_dagster.clickhouse.tables.staging import left
from iscp_dagster.clickhouse.types.nulls import flag_name
from iscp_dagster.clickhouse.types.typetext import parsed
from iscp_dagster.clickhouse.types.widening import keeping_fields, same_type, widens
from iscp_dagster.clickhouse.write.letters import DeadLetters
from iscp_dagster.clickhouse.write.placement import Placement
from iscp_dagster.clickhouse.write.targets import Target
from iscp_dagster.model.batch import Range
from iscp_dagster.model.clock import Clock, utc_now
from iscp_dagster.model.declared.images import BEFORE, CHANGE, FIELDS, IMAGE, ChangeKind
from iscp_dagster.model.declared.schema import TIMESTAMP, VERSION
from iscp_dagster.model.declared.tables import DEFAULT_TENANT
from iscp_dagster.model.errors import IscpError, KeyColumnError, SchemaError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.moment import Beginning, Moment


@dataclass(frozen=True, kw_only=True)
class IndexStore:
    """The tables of `shape` at `endpoint`. Every method may be repeated."""

    endpoint: Endpoint
    shape: IndexTable
    attempt: str = "r00000000_00000000"
    """The attempt at building tenants, which alone uses its staging table; see `new_attempt`."""
    epochs: Epochs = field(default_factory=Epochs)
    """The epochs that it shows to the barriers; see `enter` and `take_over`."""
    clock: Clock = utc_now

    @property
    def staging(self) -> str:
        """The table where the attempt builds its tenants."""
        return self.shape.staging(self.attempt)

    def target(self, *, staged: bool) -> Target:
        """Return the table to write to: the served one, or the one that replaces its partitions."""
        shape = self.shape
        index = shape.index
        return Target(
            job=JobID(db=shape.source.database, table=shape.source.table, job=index.name),
            database=shape.database,
            table=self.staging if staged else shape.rows,
            epochs=self.epochs,
            columns=shape.carried,
            flags=shape.flags,
            keys=shape.source.keys,
            identity={name: shape.column_types()[name] for name in shape.order_by},
            tenant=shape.source.tenant,
            stored=shape.stored,
            buries=self._buries,
            index=index,
        )

    @property
    def placement(self) -> Placement | None:
        """Selects the source rows that are its own; None: all."""
        shape, sharding = self.shape, self.shape.index.placement
        if sharding is None:
            return None
        return Placement(
            endpoint=self.endpoint,
            name=self._shown,
            sharding=sharding,
            stored={name: shape.stored[name] for name in sharding.key},
        )

    def ensure(self) -> None:
        """Create missing database and tables; add columns that the source gained.

        A column that the source lost stays, with its values, and so does a field of a structure.
        Raises SchemaError if the index's definition changed, if a table or view is not its own, or
        if a column changed to a type that does not hold its old values.
        """
        found = namesakes(self.endpoint, self.shape)
        if self.shape.rows not in found:
            for statement in self.shape.create_statements(Barrier.first(self.clock())):
                self._run(statement)
            found = namesakes(self.endpoint, self.shape)
        check_owned(self.shape, found)
        if self._buries:
            self._letters.ensure()
        self._check_definition(found[self.shape.rows].definition)
        self._check_generation(found.get(self.shape.view))
        held, view = found[self.shape.rows].columns, found.get(self.shape.view)
        for name in self.shape.column_types():
            self._fit(name, held.get(name))
        missing = self._lost_its_view() if view is None else self._has_old_views(found)
        if missing and self._serves():
            self.ensure_views()

    def ensure_views(self) -> None:
        """Create or replace the views that a user queries."""
        for statement in self.shape.view_statements(self.lost()):
            self._run(statement)

    def renew_views(self) -> bool:
        """Replace views that another version of this package made; return whether there were any.

        Idempotent. Leaves alone an index that has no view, serves another generation, or lacks
        columns that its next iteration adds.
        """
        found = namesakes(self.endpoint, self.shape)
        held = found[self.shape.rows].columns if self.shape.rows in found else {}
        has_all = held.keys() >= self.shape.column_types().keys()
        is_shown = has_all and self.shape.view in found
        has_old = is_shown and self._has_old_views(found) and self._serves()
        if has_old:
            self.ensure_views()
        return has_old

    def _has_old_views(self, found: Mapping[str, Existing]) -> bool:
        """Whether a view is missing or made otherwise than it would be now, or shows less."""
        shape, view, table = self.shape, found[self.shape.view], found.get(self.shape.rows)
        held, types = table.columns if table else {}, shape.column_types()
        selects = shape.selects([name for name in held if name not in types])
        return self._shows_less(view.columns, held) or any(
            name not in found or found[name].comment != shape.view_comment(select)
            for name, select in selects.items()
        )

    def _lost_its_view(self) -> bool:
        """Whether a delayed drop of an earlier index of this name took the view of served rows."""
        if self.shape.generation:
            return False
        with self.endpoint.errors("look for rows that have no view"):
            query = f"SELECT 1 FROM {self.shape.name(self.shape.rows)} LIMIT 1"
            return bool(self.endpoint.client().query(query).result_rows)

    def lost(self) -> list[str]:
        """Return the stored columns that the source no longer has."""
        types = self.shape.column_types()
        return [name for name in self._columns() if name not in types]

    @property
    def data(self) -> IndexData:
        """The index's tables of every generation."""
        return IndexData(endpoint=self.endpoint, database=self.shape.database, view=self.shape.view)

    def reads(self) -> str:
        """Return what to select from to read this generation, which the view may not serve yet."""
        served = self.data.served()
        shape = self.shape
        if served == shape.generation:
            return shape.name(shape.view)
        return f"({shape.selects()[shape.view]})"

    def size(self) -> int:
        """Count the rows of all tenants, also those that merges will drop; 0 without a table.

        This is cheap: ClickHouse keeps the sum (`system.tables`).
        """
        query = (
            "SELECT sum(total_rows) FROM system.tables "
            "WHERE database = {database:String} AND name = {table:String}"
        )
        parameters = {"database": self.shape.database, "table": self.shape.rows}
        with self.endpoint.errors("ask for the index's size"):
            found = self.endpoint.client().query(query, parameters=parameters).result_rows
        return int(found[0][0] or 0)

    def kept(self, columns: Sequence[str], tenants: Collection[str]) -> Mapping[str, str]:
        """Return the first of the columns that already has values in a tenant's rows, by tenant."""
        held, found = self._columns(), dict[str, str]()
        for name in columns:
            if name in held:
                flag = flag_name(name)
                flagged = flag in self.shape.flags and flag in held
                given = f"NOT {ident(flag)}" if flagged else _is_given(name, held[name])
                counted = f"countIf({given})"
                counts = self._by_tenant(counted, self.shape.rows, tenants)
                found = {tenant: name for tenant, (count,) in counts.items() if count} | found
        return found

    def replaced_after(self, tenants: Collection[str], version: int) -> frozenset[str]:
        """Return the tenants whose rows are all later than `version`, as a snapshot leaves them."""
        old = f"countIf({ident(VERSION)} <= {{version:Int64}})"
        found = self._by_tenant(old, self.shape.rows, tenants, version=version)
        return frozenset(tenant for tenant, (count,) in found.items() if not count)

    @property
    def gate(self) -> Gate:
        """The gate that inserts into the served table must pass."""
        return self.data.gate(self.shape.rows, self.shape.source.tenant)

    def enter(self) -> IndexStore:
        """Return a copy with the barriers' current epochs; see `Gate.epoch` for when to call it."""
        letters = self._letters.epoch() if self._buries else 0
        return replace(self, epochs=Epochs(rows=self.gate.epoch(), letters=letters))

    def shut_out(self, tenants: Collection[str]) -> IndexStore:
        """Reject whatever was sent for these tenants so far; return a copy with the new epochs."""
        letters = 0
        if self._buries:
            self._letters.ensure()
            letters = self._letters.shut_out(self._shown, tenants)
        return replace(self, epochs=Epochs(rows=self.gate.shut_out(tenants), letters=letters))

    def take_over(
        self, tenants: Collection[str], alive: Callable[[], Collection[str]]
    ) -> IndexStore:
        """Reject for good whatever earlier runs have sent for these tenants; see `shut_out`.

        That covers inserts into the served table, dead letters, and staged rows not yet published;
        `alive` returns the runs that work on the index for other tenants. The caller holds the
        tenants' claims. Raises IscpError.
        """
        found = self.shut_out(tenants)
        staged = [table for table in self.data.stagings() if table != self.staging]
        gone = left(staged, alive()) if staged else []
        for table in staged:
            if table in gone:
                self.data.drop_staging(table)
            else:
                for some in portions(sorted(tenants)):
                    self._alter(table, "DROP PARTITION", some)
        return found

    def stage(self) -> None:
        """Create the table in which the attempt builds its tenants."""
        self._run(self.shape.staging_statement(self.attempt))

    def unstage(self) -> None:
        """Drop that table; published rows stay. Idempotent."""
        self.data.drop_staging(self.staging)

    def clear_letters(self, registrations: Mapping[str, int], *, version: int) -> None:
        """Delete the dead letters of an earlier attempt at building these tenants' jobs."""
        if self._buries:
            self._letters.drop_staged(self.target(staged=True), registrations, version=version)

    def set_aside(
        self,
        errors: Mapping[str, IscpError],
        *,
        registrations: Mapping[str, int],
        range_: Range,
    ) -> None:
        """Write a dead letter for each tenant whose range may be there only in part. Idempotent."""
        target = self.target(staged=False)
        self._letters.write_range(target, errors, registrations=registrations, range_=range_)

    def replace(
        self, rows: Mapping[str, int], *, version: int, registrations: Mapping[str, int]
    ) -> Mapping[str, IscpError]:
        """Put the staged tenants in place of the served ones; `rows` has their numbers of rows.

        Atomic for readers of each tenant: `REPLACE PARTITION`. Returns an error for each tenant
        that ClickHouse refused. Check them first with `check_staged`. Empty tenants are replaced
        too: a delayed `DROP PARTITION` would drop rows that came later. Raises IscpError.
        """
        source = f" FROM {self.shape.name(self.staging)}"
        refused: dict[str, IscpError] = {}
        for empty in (False, True):
            settings = {"allow_replace_partition_from_empty_source": 1} if empty else {}
            for some in portions(
                tenant for tenant, number in rows.items() if empty == (not number)
            ):
                refused |= self._each(self.shape.rows, "REPLACE PARTITION", some, source, settings)
        if self._serves():
            self.ensure_views()
        if self._buries:
            done = {tenant: registrations[tenant] for tenant in rows if tenant not in refused}
            self._letters.drop_older(self.target(staged=False), done, version=version)
        return refused

    def begin(self, tenants: Collection[str], at: Moment, gap: Sequence[str] = ()) -> None:
        """Mark the staged tenants' histories as beginning at a commit, after a `gap` if any.

        The marks are put in place with the rows: a tenant without rows has one, too.
        """
        column = self.shape.source.tenant
        given = [CHANGE, IMAGE, FIELDS, VERSION, TIMESTAMP]
        values = [
            *(str(int(ChangeKind.BEGIN)), str(BEFORE), "{gap:Array(String)}"),
            *("{version:UInt64}", "fromUnixTimestamp64Micro({micros:Int64}, 'UTC')"),
        ]
        if column:
            type_ = str(parsed(self.shape.column_types()[column]).bare)
            given, values = [column, *given], [f"CAST(tenant, {text(type_)})", *values]
        statement = (
            f"INSERT INTO {self.shape.name(self.staging)} ({', '.join(map(ident, given))}) "
            f"SELECT {', '.join(values)} FROM (SELECT arrayJoin({{tenants:Array(String)}}) AS "
            "tenant)"
        )
        for some in portions(sorted(tenants)):
            bound = {"tenants": some if column else [DEFAULT_TENANT], "gap": list(gap)}
            shown_ = shown(self.shape.database, self.staging, self.epochs.rows)
            places = {"version": at.version, "micros": at.micros}
            self._run(statement, {**bound, **places}, **shown_)

    def begins(self, tenants: Collection[str] | None = None) -> Mapping[str, Beginning]:
        """Return where each tenant's history begins; a tenant that is not built has none."""
        column = self.shape.source.tenant
        named = f"toString({ident(column)})" if column else text(DEFAULT_TENANT)
        where = f"AND {named} IN {{tenants:Array(String)}}" if tenants is not None else ""
        query = (
            f"SELECT {named}, {ident(VERSION)}, toUnixTimestamp64Micro({ident(TIMESTAMP)}), "
            f"{ident(FIELDS)} FROM {self.shape.final} WHERE {ident(CHANGE)} = {ChangeKind.BEGIN} "
            f"{where}"
        )
        with self.endpoint.errors("ask where the index's histories begin"):
            found = self.endpoint.client().query(
                query,
                parameters={"tenants": sorted(tenants or ())},
                settings=self.endpoint.read_settings,
            )
            return {
                tenant: Beginning(at=Moment(version, micros), gap=tuple(gap))
                for tenant, version, micros, gap in found.result_rows
            }

    def count_staged(self, tenant: str) -> int:
        """Count the tenant's staged rows, in the attempt that has the most."""
        counts = [0]
        for table in self.data.stagings():
            query = f"SELECT count() FROM {self.shape.name(table)} {self._where()}"
            # It may have been published and dropped meanwhile.
            with suppress(failures.ClickHouseError):
                counts.append(int(self._first(query, tenant)[0]))
        return max(counts)

    def check_staged(self, rows: Mapping[str, int], *, version: int) -> Mapping[str, IscpError]:
        """Return an error for each staged tenant without exactly its `rows` at `version`.

        A KeyColumnError if a key is repeated, else a LostRowsError.
        """
        key = ", ".join(map(ident, self.shape.source.keys))
        counted = f"{f'uniqExact({key})' if key else 'count()'}, "
        counted += f"countIf({ident(VERSION)} != {{version:UInt64}}), count()"
        held = self._by_tenant(counted, self.staging, rows, version=version)
        wrong: dict[str, IscpError] = {}
        for tenant, number in rows.items():
            keys, stray, found = held.get(tenant, (0, 0, 0))
            if keys == number and not stray:
                continue
            if found == number and not stray:
                wrong[tenant] = KeyColumnError(self._repeated(tenant))
                continue
            wrong[tenant] = failures.LostRowsError(
                f"{self.staging}, tenant {tenant!r}: {number} rows were sent, but it has "
                f"{found}, with {keys} different keys and {stray} of another version. The next "
                "iteration rebuilds the tenant."
            )
        return wrong

    def check_appended(
        self, rows: Mapping[str, int], *, range_: Range
    ) -> Mapping[str, failures.LostRowsError | failures.DoubledRowsError]:
        """Return an error for each tenant of an append-only index without exactly its `rows`
        in the range: a DoubledRowsError if it has more, else a LostRowsError.
        """
        if not self.shape.index.append:
            return {}
        within = (
            f"countIf({ident(VERSION)} > {{after:UInt64}} AND {ident(VERSION)} <= {{upto:UInt64}})"
        )
        ends = {"after": range_.from_.version, "upto": range_.to.version}
        held = self._by_tenant(within, self.shape.rows, rows, **ends)
        wrong: dict[str, failures.LostRowsError | failures.DoubledRowsError] = {}
        for tenant, number in rows.items():
            (found,) = held.get(tenant, (0,))
            if found != number:
                kind = failures.LostRowsError if found < number else failures.DoubledRowsError
                wrong[tenant] = kind(
                    f"{self.shape.rows}, tenant {tenant!r}: {number} rows of versions {range_} "
                    f"were sent, {found} are there. The next iteration rebuilds the tenant."
                )
        return wrong

    @property
    def _letters(self) -> DeadLetters:
        database = self.shape.database
        return DeadLetters(endpoint=self.endpoint, database=database, clock=self.clock)

    @property
    def _buries(self) -> bool:
        return self.shape.index.errors == "dead_letter"

    def _serves(self) -> bool:
        """Whether the view reads this generation, or does not exist."""
        return self.data.served() in {None, self.shape.generation}

    def _check_definition(self, made_as: Mapping[str, Any]) -> None:
        shape, wanted = self.shape, json.loads(self.shape.definition)
        changed = [n for n in sorted({*made_as, *wanted}) if made_as.get(n) != wanted.get(n)]
        if changed:
            (name, *_) = changed
            raise SchemaError(
                f"Index {self._shown}: {name} was {_set(made_as.get(name))} when its table "
                f"{shape.name(shape.rows)} was made, and is {_set(wanted.get(name))} now. "
                f"{self._remedy}"
            )

    def _check_generation(self, view: Existing | None) -> None:
        """Refuse to build a generation before the one served, where nobody would see it."""
        served = read_generation(view.name, view.as_select) if view else 0
        if served > self.shape.generation:
            raise SchemaError(
                f"Index {self._shown}: {self.shape.name(self.shape.view)} serves generation "
                f"{served}, but the ISCP log asks for {self.shape.generation}: the log was lost or "
                f"restored, or the index was declared and rebuilt before. {self._remedy}"
            )

    @property
    def _shown(self) -> str:
        return f"{self.shape.source.name}/{self.shape.index.name}"

    @property
    def _remedy(self) -> str:
        command = f"`iscp job rebuild {self._shown} --tenant '*'`"
        return f"Rebuild the index ({command}); the old rows are served until then."

    def _shows_less(self, shown: Mapping[str, str], held: Mapping[str, str]) -> bool:
        """Whether the view was made for fewer columns, or for other types."""
        return any(
            name not in shown or not same_type(shown[name], self._kept_as(name, held.get(name)))
            for name in self.shape.columns
        )

    def _kept_as(self, name: str, held: str | None) -> str:
        """Return the column's type once the table, which holds `held`, is made ready."""
        wanted = self.shape.column_types()[name]
        return wanted if name in self.shape.order_by else keeping_fields(held, wanted)

    def _columns(self) -> Mapping[str, str]:
        """The columns of the table that is served, with their types; none where it is missing."""
        held = namesakes(self.endpoint, self.shape).get(self.shape.rows)
        return held.columns if held else {}

    def _fit(self, name: str, held: str | None) -> None:
        table, kept = self.shape.rows, self._kept_as(name, held)
        column = self.shape.column_sql(name, kept)
        if held is not None and same_type(held, kept):
            return
        if held is None:
            self._run(f"ALTER TABLE {self.shape.name(table)} ADD COLUMN IF NOT EXISTS {column}")
        elif widens(held, kept) and name not in self.shape.order_by:
            self._run(f"ALTER TABLE {self.shape.name(table)} MODIFY COLUMN {column}")
        else:
            raise SchemaError(
                f"Column {name!r} of {self.shape.source.name!r} has become "
                f"{self.shape.column_types()[name]}, and index {self.shape.index.name!r} holds "
                f"{held} (table {self.shape.name(table)}). {self._remedy}"
            )

    def _repeated(self, tenant: str) -> str:
        keys = ", ".join(map(ident, self.shape.source.keys))
        row = self._first(
            f"SELECT {keys}, count() FROM {self.shape.name(self.staging)} "
            f"{self._where()} GROUP BY {keys} ORDER BY count() DESC, {keys} LIMIT 1",
            tenant,
        )
        key = dict(zip(self.shape.source.keys, row, strict=False))
        return (
            f"Source table {self.shape.source.name!r}, tenant {tenant!r}: key {key} occurs in "
            f"{row[-1]} rows; a key must be unique within its tenant. Remove the repeats, or "
            "declare more key columns."
        )

    def _where(self) -> str:
        column = self.shape.source.tenant
        return f"WHERE {ident(column)} = {self._bound('tenant')}" if column else ""

    def _bound(self, parameter: str) -> str:
        """Return the query parameter, typed as the tenant column."""
        return f"{{{parameter}:{self.shape.column_types()[self.shape.source.tenant or '']}}}"

    def _each(
        self,
        table: str,
        action: str,
        tenants: Sequence[str],
        source: str,
        settings: Mapping[str, int],
    ) -> dict[str, IscpError]:
        """Alter these tenants' partitions; return an error for each tenant refused.

        After a permanent error each is tried alone; a temporary one is returned for all of them,
        which are retried together.
        """
        try:
            self._alter(table, action, tenants, source, **settings)
        except IscpError as error:
            if len(tenants) == 1 or not error.permanent:
                return dict.fromkeys(tenants, error)
            alone = (self._each(table, action, [each], source, settings) for each in tenants)
            return {tenant: why for each in alone for tenant, why in each.items()}
        return {}

    def _alter(
        self,
        table: str,
        action: str,
        tenants: Sequence[str],
        source: str = "",
        **settings: int,
    ) -> None:
        """Run one statement for all of them; parts done before one fails are not undone."""
        names = {f"tenant{number}": tenant for number, tenant in enumerate(tenants)}
        parts = [f"{action} {self._partition(name)}{source}" for name in names]
        statement = f"ALTER TABLE {self.shape.name(table)} {', '.join(parts)}"
        self._run(statement, names, **settings, **shown(self.shape.database, table))

    def _partition(self, parameter: str) -> str:
        return self._bound(parameter) if self.shape.source.tenant else "tuple()"

    def _run(
        self, statement: str, parameters: Mapping[str, Any] | None = None, **settings: Any
    ) -> None:
        with self.endpoint.errors(_what(statement)):
            client = self.endpoint.client()
            client.command(statement, parameters=parameters, settings=SETTINGS | settings)

    def _by_tenant(
        self, counted: str, table: str, tenants: Collection[str], **parameters: Any
    ) -> dict[str, tuple[Any, ...]]:
        """Return the `counted` values of each of the tenants that has rows in the table."""
        column = self.shape.source.tenant
        rows = f"FROM {self.shape.name(table)}"
        counts, external_ = f"tuple({counted}) AS counts", None
        query = f"SELECT {text(DEFAULT_TENANT)}, {counts} {rows} HAVING count() > 0"
        if column:
            type_ = str(parsed(self.shape.column_types()[column]).bare)
            named = f"(SELECT tenant, CAST(tenant, {text(type_)}) AS value FROM tenants)"
            groups = (
                f"SELECT {ident(column)} AS value, {counts} {rows} "
                f"WHERE value IN (SELECT value FROM {named}) GROUP BY value"
            )
            # Name tenants as the caller does: ClickHouse may write a value differently.
            held = f"({groups}) AS held JOIN {named} AS named USING value"
            query = f"SELECT tenant, counts FROM {held}"
            names = pa.table({"tenant": pa.array(sorted(tenants), pa.string())})
            external_ = external("tenants", names, ["String"])
        with self.endpoint.errors("count the index's rows"):
            result = self.endpoint.client().query(
                query,
                parameters=parameters,
                external_data=external_,
                settings=self.endpoint.read_settings,
            )
            return dict(result.result_rows)

    def _first(self, query: str, tenant: str, **parameters: Any) -> tuple[Any, ...]:
        with self.endpoint.errors("read the index's rows"):
            result = self.endpoint.client().query(
                query,
                parameters={"tenant": tenant, **parameters},
                settings=self.endpoint.read_settings,
            )
            return tuple(result.result_rows[0])


def _what(statement: str) -> str:
    """Shorten a statement for errors: leave out its details."""
    return statement.partition("(")[0].partition(",")[0].strip()


def _set(value: Any) -> str:
    """Show an option to a person."""
    return "not set" if value is None else repr(value)


def _is_given(column: str, type_: str) -> str:
    """Return the condition that the column has a value other than what it was added with."""
    if not type_.startswith(("Array(", "Map(", "Tuple(", "Nested(")):
        return f"{ident(column)} IS NOT NULL"
    return f"toString({ident(column)}) != toString(defaultValueOfTypeName({text(type_)}))"
