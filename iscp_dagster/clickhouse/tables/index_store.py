"""One index's tables, as the control plane sees them: prepare, publish, drop, count."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from iscp_dagster.clickhouse.connect import failures
from iscp_dagster.clickhouse.connect.barrier import Barrier, Epochs, build_epoch_settings
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.external import build_external_data
from iscp_dagster.clickhouse.connect.portions import split_names
from iscp_dagster.clickhouse.connect.quoting import quote_identifier, quote_string
from iscp_dagster.clickhouse.connect.table_barrier import TableBarrier
from iscp_dagster.clickhouse.tables.buckets import render_tombstones
from iscp_dagster.clickhouse.tables.ddl import SETTINGS, IndexShape
from iscp_dagster.clickhouse.tables.generations import IndexGenerations, parse_generation
from iscp_dagster.clickhouse.tables.ownership import (
    ExistingTable,
    check_owned,
    find_existing_tables,
)
from iscp_dagster.clickhouse.tables.staging import find_leftover_tables, repeat_attempt_id
from iscp_dagster.clickhouse.types.nulls import format_flag_name
from iscp_dagster.clickhouse.types.type_parser import parse_type
from iscp_dagster.clickhouse.types.widening import can_widen, is_same_type, keep_old_fields
from iscp_dagster.clickhouse.write.letters import DeadLetters
from iscp_dagster.clickhouse.write.shard_selection import ShardSelector
from iscp_dagster.clickhouse.write.targets import Target
from iscp_dagster.model.batch import Range
from iscp_dagster.model.clock import Clock, get_utc_now
from iscp_dagster.model.declared.images import BEFORE, CHANGE, FIELDS, IMAGE, ChangeKind
from iscp_dagster.model.declared.schema import TIMESTAMP, VERSION
from iscp_dagster.model.declared.tables import DEFAULT_TENANT
from iscp_dagster.model.errors import IscpError, KeyColumnError, SchemaError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.moment import HistoryStart, Moment

_SENT = "tenants"
"""The external table of the tenants that a statement is for."""


@dataclass(frozen=True, kw_only=True)
class IndexStore:
    """The tables of `shape` at `endpoint`. Every method may be repeated."""

    endpoint: ClickHouseEndpoint
    shape: IndexShape
    attempt: str = "r00000000_00000000"
    """The attempt at building tenants, the only one to use its staging table."""
    epochs: Epochs = field(default_factory=Epochs)
    """The epochs that it shows to the barriers; see `refresh_epochs` and `take_over`."""
    clock: Clock = get_utc_now

    @property
    def staging(self) -> str:
        """The table where the attempt builds its tenants."""
        return self.shape.format_staging_name(self.attempt)

    def make_target(self, *, staged: bool) -> Target:
        """Return the table to write to: the served one, or the one that replaces its partitions."""
        shape = self.shape
        index = shape.index
        return Target(
            job=JobID(db=shape.source.database, table=shape.source.table, job=index.name),
            database=shape.database,
            table=self.staging if staged else shape.rows,
            epochs=self.epochs,
            columns=shape.source_columns,
            flags=shape.flags,
            keys=shape.source.keys,
            identity={name: shape.get_column_types()[name] for name in shape.identity_columns},
            tenant=shape.source.tenant,
            stored_types=shape.stored_types,
            keeps_dead_letters=self._keeps_dead_letters,
            keeps_replaced_rows=bool(shape.source.buckets),
            index=index,
        )

    @property
    def placement(self) -> ShardSelector | None:
        """Selects the source rows that are its own; None: all."""
        shape, sharding = self.shape, self.shape.index.placement
        if sharding is None:
            return None
        return ShardSelector(
            endpoint=self.endpoint,
            name=self._index_name,
            sharding=sharding,
            stored_types={name: shape.stored_types[name] for name in sharding.key},
        )

    def ensure(self) -> None:
        """Create missing database and tables; add columns that the source gained.

        A column that the source lost stays, with its values, and so does a field of a structure.
        Raises SchemaError if the index's definition changed, if a table or view is not its own, or
        if a column changed to a type that does not hold its old values.
        """
        existing = find_existing_tables(self.endpoint, self.shape)
        if self.shape.rows not in existing:
            for statement in self.shape.render_create_statements(
                Barrier.create_initial(self.clock())
            ):
                self._run_statement(statement)
            existing = find_existing_tables(self.endpoint, self.shape)
        check_owned(self.shape, existing)
        if self._keeps_dead_letters:
            self._dead_letters.ensure()
        self._check_definition(existing[self.shape.rows].definition)
        self._check_generation(existing.get(self.shape.view))
        columns, view = existing[self.shape.rows].columns, existing.get(self.shape.view)
        for name in self.shape.get_column_types():
            self._fit_column(name, columns.get(name))
        missing = self._has_lost_view() if view is None else self._has_old_views(existing)
        if missing and self._is_served():
            self.ensure_views()

    def ensure_views(self) -> None:
        """Create or replace the views that a user queries."""
        for statement in self.shape.render_view_statements(self.list_dropped_columns()):
            self._run_statement(statement)

    def renew_views(self) -> bool:
        """Replace views that another version of this package made; return whether there were any.

        Idempotent. Skips an index that has no view, serves another generation, or lacks
        columns that its next iteration adds.
        """
        existing = find_existing_tables(self.endpoint, self.shape)
        columns = existing[self.shape.rows].columns if self.shape.rows in existing else {}
        has_all = columns.keys() >= self.shape.get_column_types().keys()
        is_shown = has_all and self.shape.view in existing
        has_old = is_shown and self._has_old_views(existing) and self._is_served()
        if has_old:
            self.ensure_views()
        return has_old

    def _has_old_views(self, existing: Mapping[str, ExistingTable]) -> bool:
        """Whether a view is missing, would be made differently now, or lacks columns."""
        shape, view, table = self.shape, existing[self.shape.view], existing.get(self.shape.rows)
        columns, types = table.columns if table else {}, shape.get_column_types()
        selects = shape.render_view_selects([name for name in columns if name not in types])
        return self._is_view_narrower(view.columns, columns) or any(
            name not in existing or existing[name].comment != shape.render_view_comment(select)
            for name, select in selects.items()
        )

    def _has_lost_view(self) -> bool:
        """Whether a delayed drop of an earlier index of this name dropped this one's view."""
        if self.shape.generation:
            return False
        with self.endpoint.translate_errors("look for rows that have no view"):
            query = f"SELECT 1 FROM {self.shape.qualify_name(self.shape.rows)} LIMIT 1"
            return bool(self.endpoint.get_client().query(query).result_rows)

    def list_dropped_columns(self) -> list[str]:
        """Return the stored columns that the source no longer has."""
        types = self.shape.get_column_types()
        return [name for name in self._read_columns() if name not in types]

    @property
    def data(self) -> IndexGenerations:
        """The index's tables of every generation."""
        return IndexGenerations(
            endpoint=self.endpoint, database=self.shape.database, view=self.shape.view
        )

    def find_read_source(self) -> str:
        """Return what to select from to read this generation, which the view may not serve yet."""
        served = self.data.find_served_generation()
        shape = self.shape
        if served == shape.generation:
            return shape.qualify_name(shape.view)
        return f"({shape.render_view_selects()[shape.view]})"

    def count_rows(self) -> int:
        """Count the rows of all tenants, before merges; 0 without a table.

        This is cheap: ClickHouse keeps the sum (`system.tables`).
        """
        query = (
            "SELECT sum(total_rows) FROM system.tables "
            "WHERE database = {database:String} AND name = {table:String}"
        )
        parameters = {"database": self.shape.database, "table": self.shape.rows}
        with self.endpoint.translate_errors("read the index's size"):
            rows = self.endpoint.get_client().query(query, parameters=parameters).result_rows
        return int(rows[0][0] or 0)

    def find_filled_columns(
        self, columns: Sequence[str], tenants: Collection[str]
    ) -> Mapping[str, str]:
        """Return the first of the columns that already has values in a tenant's rows, by tenant."""
        stored_types, first_columns = self._read_columns(), dict[str, str]()
        for name in columns:
            if name in stored_types:
                flag = format_flag_name(name)
                has_flag = flag in self.shape.flags and flag in stored_types
                condition = (
                    f"NOT {quote_identifier(flag)}"
                    if has_flag
                    else _render_filled_condition(name, stored_types[name])
                )
                counted = f"countIf({condition})"
                counts = self._count_by_tenant(counted, self.shape.rows, tenants)
                first_columns = {
                    tenant: name for tenant, (count,) in counts.items() if count
                } | first_columns
        return first_columns

    def find_replaced_tenants(self, tenants: Collection[str], version: int) -> frozenset[str]:
        """Return the tenants whose rows are all later than `version`, as a snapshot leaves them."""
        old_count = f"countIf({quote_identifier(VERSION)} <= {{version:Int64}})"
        counts = self._count_by_tenant(
            old_count,
            self.shape.rows,
            tenants,
            final=bool(self.shape.source.buckets),
            version=version,
        )
        return frozenset(tenant for tenant, (count,) in counts.items() if not count)

    @property
    def barrier(self) -> TableBarrier:
        """The gate that inserts into the served table must pass."""
        return self.data.get_barrier(self.shape.rows, self.shape.source.tenant)

    def refresh_epochs(self) -> IndexStore:
        """Return a copy with the barriers' current epochs; when, see `TableBarrier.read_epoch`."""
        letters = self._dead_letters.read_epoch() if self._keeps_dead_letters else 0
        return replace(self, epochs=Epochs(rows=self.barrier.read_epoch(), letters=letters))

    def reject_earlier_inserts(self, tenants: Collection[str]) -> IndexStore:
        """Reject whatever was sent for these tenants so far; return a copy with the new epochs."""
        letters = 0
        if self._keeps_dead_letters:
            self._dead_letters.ensure()
            letters = self._dead_letters.reject_earlier_inserts(self._index_name, tenants)
        return replace(
            self, epochs=Epochs(rows=self.barrier.reject_earlier_inserts(tenants), letters=letters)
        )

    def take_over(
        self, tenants: Collection[str], list_live_runs: Callable[[], Collection[str]]
    ) -> IndexStore:
        """Reject for good whatever earlier runs have sent for these tenants.

        That covers inserts into the served table, dead letters, and staged rows not yet published;
        `list_live_runs` returns the runs that work on the index for other tenants. The caller
        holds the tenants' claims. Raises IscpError.
        """
        store = self.reject_earlier_inserts(tenants)
        staged = [table for table in self.data.list_staging_tables() if table != self.staging]
        leftovers = find_leftover_tables(staged, list_live_runs()) if staged else []
        for table in staged:
            if table in leftovers:
                self.data.drop_staging(table)
            else:
                self.data.drop_staged_tenants(table, self.shape.source.tenant, tenants)
        return store

    def create_staging_table(self) -> None:
        """Create the table in which the attempt builds its tenants."""
        self._run_statement(self.shape.render_staging_table(self.attempt))

    def drop_staging_table(self) -> None:
        """Drop that table; published rows stay. Idempotent."""
        self.data.drop_staging(self.staging)

    def clear_letters(self, registrations: Mapping[str, int], *, version: int) -> None:
        """Delete the dead letters of an earlier attempt at building these tenants' jobs."""
        if self._keeps_dead_letters:
            self._dead_letters.drop_staged(
                self.make_target(staged=True), registrations, version=version
            )

    def write_range_letters(
        self,
        errors: Mapping[str, IscpError],
        *,
        registrations: Mapping[str, int],
        range_: Range,
    ) -> None:
        """Write a dead letter for each tenant whose range may be there only in part. Idempotent."""
        target = self.make_target(staged=False)
        self._dead_letters.write_range(target, errors, registrations=registrations, range_=range_)

    def publish_tenants(
        self, rows: Mapping[str, int], *, version: int, registrations: Mapping[str, int]
    ) -> Mapping[str, IscpError]:
        """Put the staged tenants in place of the served ones; `rows` has their numbers of rows.

        Atomic for readers of each tenant. Returns an error for each tenant that ClickHouse refused.
        Check them first with `find_staged_errors`. Raises IscpError.
        """
        if self.shape.source.buckets:
            refused = self._publish_in_buckets(rows, version)
        else:
            refused = self._replace_partitions(rows)
        if self._is_served():
            self.ensure_views()
        if self._keeps_dead_letters:
            rebuilt = {tenant: registrations[tenant] for tenant in rows if tenant not in refused}
            self._dead_letters.drop_earlier_builds(
                self.make_target(staged=False), rebuilt, version=version
            )
        return refused

    def _replace_partitions(self, rows: Mapping[str, int]) -> dict[str, IscpError]:
        """Replace each tenant's partition.

        Also if it is empty: a delayed `DROP PARTITION` would drop rows that came later.
        """
        source = f" FROM {self.shape.qualify_name(self.staging)}"
        refused: dict[str, IscpError] = {}
        for empty in (False, True):
            settings = {"allow_replace_partition_from_empty_source": 1} if empty else {}
            for portion in split_names(
                tenant for tenant, number in rows.items() if empty == (not number)
            ):
                refused |= self._try_alter(
                    self.shape.rows, "REPLACE PARTITION", portion, source, settings
                )
        return refused

    def _publish_in_buckets(self, tenants: Collection[str], version: int) -> dict[str, IscpError]:
        """Add the staged rows of these tenants to the served ones, with tombstones for the rest."""
        versions = self._count_by_tenant(
            f"max({quote_identifier(VERSION)})", self.shape.rows, tenants
        )
        refused = self._find_later_rows(versions, version)
        published = sorted(set(tenants) - refused.keys())
        if not published:
            return refused
        with self._select_staged(published) as table:
            if versions:
                self._stage_tombstones(table, published)
            self.data.attach_partitions(self.shape.rows, table)
        return refused

    def _find_later_rows(
        self, versions: Mapping[str, tuple[Any, ...]], version: int
    ) -> dict[str, IscpError]:
        """Return an error for each tenant with rows of a later version, which `version` cannot
        replace: of two rows of a key the later one is served.
        """
        if VERSION in self.shape.sort_columns:
            return {}
        return {
            tenant: SchemaError(
                f"Index {self._index_name}, tenant {tenant!r}: it has rows of version {latest}, "
                f"and the source is at version {version}: the table was recreated, or its log "
                f"restored. {self._remedy}"
            )
            for tenant, (latest,) in versions.items()
            if latest > version
        }

    @contextmanager
    def _select_staged(self, tenants: Collection[str]) -> Iterator[str]:
        """Give the staging table, or a copy of only these tenants if it has others as well."""
        staged = self.shape.qualify_name(self.staging)
        others = f"SELECT 1 FROM {staged} WHERE NOT ({self._is_selected}) LIMIT 1"
        with self.endpoint.translate_errors("look for other staged tenants"):
            result = self.endpoint.get_client().query(
                others, external_data=_send_tenants(tenants), settings=self.endpoint.read_settings
            )
        if not result.result_rows:
            yield self.staging
            return
        copy = replace(self, attempt=repeat_attempt_id(self.attempt))
        copy.create_staging_table()
        try:
            names = ", ".join(map(quote_identifier, self.shape.get_column_types()))
            selected = f"SELECT {names} FROM {staged} WHERE {self._is_selected}"
            table = self.shape.qualify_name(copy.staging)
            self._stage_rows(f"INSERT INTO {table} ({names}) {selected}", tenants)
            yield copy.staging
        finally:
            copy.drop_staging_table()

    def _stage_tombstones(self, table: str, tenants: Collection[str]) -> None:
        """Stage a tombstone for each of these tenants' served rows that is not staged."""
        key = ", ".join(map(quote_identifier, self.shape.sort_columns))
        staged = self.shape.qualify_name(table)
        condition = f"{self._is_selected} AND ({key}) NOT IN (SELECT {key} FROM {staged})"
        columns = list(self.shape.get_column_types())
        self._stage_rows(
            render_tombstones(staged, self.shape.all_rows, columns, condition), tenants
        )

    def _stage_rows(self, statement: str, tenants: Collection[str]) -> None:
        """Run an INSERT into a staging table that selects rows of these tenants."""
        settings = build_epoch_settings(self.shape.database, self.staging, self.epochs.rows)
        with self.endpoint.translate_errors(_shorten_statement(statement)):
            self.endpoint.get_client().command(
                statement,
                external_data=_send_tenants(tenants),
                settings={**SETTINGS, "max_partitions_per_insert_block": 0, **settings},
            )

    @property
    def _is_selected(self) -> str:
        """The condition that a row's tenant is one of those sent."""
        column = self.shape.source.tenant or ""
        return f"{quote_identifier(column)} IN (SELECT value FROM {self._sent_tenants})"

    @property
    def _sent_tenants(self) -> str:
        """The tenants sent with a query, by name and as the tenant column's value."""
        type_ = str(parse_type(self.shape.get_column_types()[self.shape.source.tenant or ""]).bare)
        return f"(SELECT tenant, CAST(tenant, {quote_string(type_)}) AS value FROM {_SENT})"

    def stage_history_starts(
        self, tenants: Collection[str], at: Moment, gap: Sequence[str] = ()
    ) -> None:
        """Mark the staged tenants' histories as beginning at a commit, after a `gap` if any.

        The marks are put in place with the rows: a tenant without rows has one, too.
        """
        column = self.shape.source.tenant
        columns = [CHANGE, IMAGE, FIELDS, VERSION, TIMESTAMP]
        values = [
            *(str(int(ChangeKind.BEGIN)), str(BEFORE), "{gap:Array(String)}"),
            *("{version:UInt64}", "fromUnixTimestamp64Micro({micros:Int64}, 'UTC')"),
        ]
        if column:
            type_ = str(parse_type(self.shape.get_column_types()[column]).bare)
            columns, values = [column, *columns], [f"CAST(tenant, {quote_string(type_)})", *values]
        statement = (
            f"INSERT INTO {self.shape.qualify_name(self.staging)} "
            f"({', '.join(map(quote_identifier, columns))}) "
            f"SELECT {', '.join(values)} FROM (SELECT arrayJoin({{tenants:Array(String)}}) AS "
            "tenant)"
        )
        for portion in split_names(sorted(tenants)):
            bound = {"tenants": portion if column else [DEFAULT_TENANT], "gap": list(gap)}
            epoch_settings = build_epoch_settings(
                self.shape.database, self.staging, self.epochs.rows
            )
            moment_parameters = {"version": at.version, "micros": at.micros}
            self._run_statement(statement, {**bound, **moment_parameters}, **epoch_settings)

    def read_beginnings(self, tenants: Collection[str] | None = None) -> Mapping[str, HistoryStart]:
        """Return where each tenant's history begins; a tenant not yet built is left out."""
        column = self.shape.source.tenant
        tenant_text = (
            f"toString({quote_identifier(column)})" if column else quote_string(DEFAULT_TENANT)
        )
        where = f"AND {tenant_text} IN {{tenants:Array(String)}}" if tenants is not None else ""
        query = (
            f"SELECT {tenant_text}, {quote_identifier(VERSION)}, "
            f"toUnixTimestamp64Micro({quote_identifier(TIMESTAMP)}), "
            f"{quote_identifier(FIELDS)} FROM {self.shape.final} WHERE {quote_identifier(CHANGE)} "
            f"= {ChangeKind.BEGIN} "
            f"{where}"
        )
        with self.endpoint.translate_errors("read where the index's histories begin"):
            result = self.endpoint.get_client().query(
                query,
                parameters={"tenants": sorted(tenants or ())},
                settings=self.endpoint.read_settings,
            )
            return {
                tenant: HistoryStart(at=Moment(version, micros), gap=tuple(gap))
                for tenant, version, micros, gap in result.result_rows
            }

    def count_staged(self, tenant: str) -> int:
        """Count the tenant's staged rows, in the attempt that has the most."""
        counts = [0]
        for table in self.data.list_staging_tables():
            query = f"SELECT count() FROM {self.shape.qualify_name(table)} {self._render_where()}"
            # It may have been published and dropped meanwhile.
            with suppress(failures.ClickHouseError):
                counts.append(int(self._read_first_row(query, tenant)[0]))
        return max(counts)

    def find_staged_errors(
        self, row_counts: Mapping[str, int], *, version: int
    ) -> Mapping[str, IscpError]:
        """Return an error for each staged tenant that has not exactly its row count, at `version`.

        A KeyColumnError if a key is repeated, else a LostRowsError.
        """
        key = ", ".join(map(quote_identifier, self.shape.source.keys))
        counted = f"{f'uniqExact({key})' if key else 'count()'}, "
        counted += f"countIf({quote_identifier(VERSION)} != {{version:UInt64}}), count()"
        counts = self._count_by_tenant(counted, self.staging, row_counts, version=version)
        errors: dict[str, IscpError] = {}
        for tenant, number in row_counts.items():
            keys, stray, total = counts.get(tenant, (0, 0, 0))
            if keys == number and not stray:
                continue
            if total == number and not stray:
                errors[tenant] = KeyColumnError(self._describe_repeated_key(tenant))
                continue
            errors[tenant] = failures.LostRowsError(
                f"{self.staging}, tenant {tenant!r}: {number} rows were sent, but it has "
                f"{total}, with {keys} different keys and {stray} of another version. The next "
                "iteration rebuilds the tenant."
            )
        return errors

    def find_appended_errors(
        self, row_counts: Mapping[str, int], *, range_: Range
    ) -> Mapping[str, failures.LostRowsError | failures.DoubledRowsError]:
        """Return an error for each tenant of an append-only index that has not its row count
        in the range: a DoubledRowsError if it has more, else a LostRowsError.
        """
        if not self.shape.index.append:
            return {}
        in_range = (
            f"countIf({quote_identifier(VERSION)} > {{after:UInt64}} AND "
            f"{quote_identifier(VERSION)} <= {{upto:UInt64}})"
        )
        bounds: dict[str, Any] = {"after": range_.from_.version, "upto": range_.to.version}
        counts = self._count_by_tenant(in_range, self.shape.rows, row_counts, **bounds)
        errors: dict[str, failures.LostRowsError | failures.DoubledRowsError] = {}
        for tenant, number in row_counts.items():
            (count,) = counts.get(tenant, (0,))
            if count != number:
                error_class = (
                    failures.LostRowsError if count < number else failures.DoubledRowsError
                )
                errors[tenant] = error_class(
                    f"{self.shape.rows}, tenant {tenant!r}: {number} rows of versions {range_} "
                    f"were sent, {count} are there. The next iteration rebuilds the tenant."
                )
        return errors

    @property
    def _dead_letters(self) -> DeadLetters:
        database = self.shape.database
        return DeadLetters(endpoint=self.endpoint, database=database, clock=self.clock)

    @property
    def _keeps_dead_letters(self) -> bool:
        return self.shape.index.errors == "dead_letter"

    def _is_served(self) -> bool:
        """Whether the view reads this generation, or does not exist."""
        return self.data.find_served_generation() in {None, self.shape.generation}

    def _check_definition(self, made_as: Mapping[str, Any]) -> None:
        shape, definition = self.shape, json.loads(self.shape.definition)
        changed = [
            n for n in sorted({*made_as, *definition}) if made_as.get(n) != definition.get(n)
        ]
        if changed:
            (name, *_) = changed
            raise SchemaError(
                f"Index {self._index_name}: {name} was {_format_option(made_as.get(name))} when "
                "its table "
                f"{shape.qualify_name(shape.rows)} was made, and is "
                f"{_format_option(definition.get(name))} "
                "now. "
                f"{self._remedy}"
            )

    def _check_generation(self, view: ExistingTable | None) -> None:
        """Refuse to build a generation before the one served, where nobody would see it."""
        served = parse_generation(view.name, view.as_select) if view else 0
        if served > self.shape.generation:
            raise SchemaError(
                f"Index {self._index_name}: {self.shape.qualify_name(self.shape.view)} serves "
                "generation "
                f"{served}, but the ISCP log has {self.shape.generation}: the log was lost or "
                f"restored, or the index was declared and rebuilt before. {self._remedy}"
            )

    @property
    def _index_name(self) -> str:
        return f"{self.shape.source.name}/{self.shape.index.name}"

    @property
    def _remedy(self) -> str:
        command = f"`iscp job rebuild {self._index_name} --tenant '*'`"
        return f"Rebuild the index ({command}); the old rows are served until then."

    def _is_view_narrower(
        self, view_columns: Mapping[str, str], table_columns: Mapping[str, str]
    ) -> bool:
        """Whether the view was made for fewer columns, or for other types."""
        return any(
            name not in view_columns
            or not is_same_type(
                view_columns[name], self._derive_column_type(name, table_columns.get(name))
            )
            for name in self.shape.columns
        )

    def _derive_column_type(self, name: str, existing: str | None) -> str:
        """Return the column's type once the table, where it is `existing`, is made ready."""
        target = self.shape.get_column_types()[name]
        return target if name in self.shape.identity_columns else keep_old_fields(existing, target)

    def _read_columns(self) -> Mapping[str, str]:
        """The served table's columns and their types; empty if there is no table."""
        table = find_existing_tables(self.endpoint, self.shape).get(self.shape.rows)
        return table.columns if table else {}

    def _fit_column(self, name: str, existing: str | None) -> None:
        table, target = self.shape.rows, self._derive_column_type(name, existing)
        column = self.shape.render_column(name, target)
        if existing is not None and is_same_type(existing, target):
            return
        if existing is None:
            self._run_statement(
                f"ALTER TABLE {self.shape.qualify_name(table)} ADD COLUMN IF NOT EXISTS {column}"
            )
        elif can_widen(existing, target) and name not in self.shape.identity_columns:
            self._run_statement(
                f"ALTER TABLE {self.shape.qualify_name(table)} MODIFY COLUMN {column}"
            )
        else:
            raise SchemaError(
                f"Column {name!r} of {self.shape.source.name!r} has become "
                f"{self.shape.get_column_types()[name]}, and index {self.shape.index.name!r} holds "
                f"{existing} (table {self.shape.qualify_name(table)}). {self._remedy}"
            )

    def _describe_repeated_key(self, tenant: str) -> str:
        keys = ", ".join(map(quote_identifier, self.shape.source.keys))
        row = self._read_first_row(
            f"SELECT {keys}, count() FROM {self.shape.qualify_name(self.staging)} "
            f"{self._render_where()} GROUP BY {keys} ORDER BY count() DESC, {keys} LIMIT 1",
            tenant,
        )
        key = dict(zip(self.shape.source.keys, row, strict=False))
        return (
            f"Source table {self.shape.source.name!r}, tenant {tenant!r}: key {key} occurs in "
            f"{row[-1]} rows; a key must be unique within its tenant. Remove the repeats, or "
            "declare more key columns."
        )

    def _render_where(self) -> str:
        column = self.shape.source.tenant
        return (
            f"WHERE {quote_identifier(column)} = {self._render_parameter('tenant')}"
            if column
            else ""
        )

    def _render_parameter(self, parameter: str) -> str:
        """Return the query parameter, typed as the tenant column."""
        return f"{{{parameter}:{self.shape.get_column_types()[self.shape.source.tenant or '']}}}"

    def _try_alter(
        self,
        table: str,
        action: str,
        tenants: Sequence[str],
        source: str,
        settings: Mapping[str, int],
    ) -> dict[str, IscpError]:
        """Alter these tenants' partitions; return an error for each tenant refused.

        After a permanent error each is tried by itself; a temporary one is returned for all of
        them, which are retried together.
        """
        try:
            self._alter_partitions(table, action, tenants, source, **settings)
        except IscpError as error:
            if len(tenants) == 1 or not error.permanent:
                return dict.fromkeys(tenants, error)
            results = (
                self._try_alter(table, action, [tenant], source, settings) for tenant in tenants
            )
            return {tenant: reason for errors in results for tenant, reason in errors.items()}
        return {}

    def _alter_partitions(
        self,
        table: str,
        action: str,
        tenants: Sequence[str],
        source: str = "",
        **settings: int,
    ) -> None:
        """Run one statement for all of them; parts done before one fails are not undone."""
        names = {f"tenant{number}": tenant for number, tenant in enumerate(tenants)}
        parts = [f"{action} {self._render_partition(name)}{source}" for name in names]
        statement = f"ALTER TABLE {self.shape.qualify_name(table)} {', '.join(parts)}"
        self._run_statement(
            statement, names, **settings, **build_epoch_settings(self.shape.database, table)
        )

    def _render_partition(self, parameter: str) -> str:
        return self._render_parameter(parameter) if self.shape.source.tenant else "tuple()"

    def _run_statement(
        self, statement: str, parameters: Mapping[str, Any] | None = None, **settings: Any
    ) -> None:
        with self.endpoint.translate_errors(_shorten_statement(statement)):
            client = self.endpoint.get_client()
            client.command(statement, parameters=parameters, settings=SETTINGS | settings)

    def _count_by_tenant(
        self,
        counted: str,
        table: str,
        tenants: Collection[str],
        *,
        final: bool = False,
        **parameters: Any,
    ) -> dict[str, tuple[Any, ...]]:
        """Return the `counted` values of each tenant that has rows in the table.

        If `final`, leave out rows that were replaced or deleted.
        """
        column = self.shape.source.tenant
        rows = f"FROM {self.shape.qualify_name(table)}{' FINAL' if final else ''}"
        counts, tenant_table = f"tuple({counted}) AS counts", None
        query = f"SELECT {quote_string(DEFAULT_TENANT)}, {counts} {rows} HAVING count() > 0"
        if column:
            groups = (
                f"SELECT {quote_identifier(column)} AS value, {counts} {rows} "
                f"WHERE {self._is_selected} GROUP BY value"
            )
            # Name tenants as the caller does: ClickHouse may write a value differently.
            joined = f"({groups}) AS held JOIN {self._sent_tenants} AS named USING value"
            query = f"SELECT tenant, counts FROM {joined}"
            tenant_table = _send_tenants(tenants)
        with self.endpoint.translate_errors("count the index's rows"):
            result = self.endpoint.get_client().query(
                query,
                parameters=parameters,
                external_data=tenant_table,
                settings=self.endpoint.read_settings,
            )
            return dict(result.result_rows)

    def _read_first_row(self, query: str, tenant: str, **parameters: Any) -> tuple[Any, ...]:
        with self.endpoint.translate_errors("read the index's rows"):
            result = self.endpoint.get_client().query(
                query,
                parameters={"tenant": tenant, **parameters},
                settings=self.endpoint.read_settings,
            )
            return tuple(result.result_rows[0])


def _send_tenants(tenants: Collection[str]) -> Any:
    """Return the tenants' names as an external table."""
    names = pa.table({"tenant": pa.array(sorted(tenants), pa.string())})
    return build_external_data(_SENT, names, ["String"])


def _shorten_statement(statement: str) -> str:
    """Shorten a statement for errors: leave out its details."""
    return statement.partition("(")[0].partition(",")[0].strip()


def _format_option(value: Any) -> str:
    """Show an option to a person."""
    return "not set" if value is None else repr(value)


def _render_filled_condition(column: str, type_: str) -> str:
    """Return the condition that the column has a value other than its initial default."""
    if not type_.startswith(("Array(", "Map(", "Tuple(", "Nested(")):
        return f"{quote_identifier(column)} IS NOT NULL"
    return (
        f"toString({quote_identifier(column)}) != "
        f"toString(defaultValueOfTypeName({quote_string(type_)}))"
    )
