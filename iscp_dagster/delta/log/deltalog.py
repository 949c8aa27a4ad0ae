"""Change detection from a Delta table's log, without Spark.

An idle poll stats two files, the known commit and the one after it: microseconds on a local disk,
two requests in an object store. Each commit is read once per `DeltaLog`, whatever the number of
tenants. Not thread-safe: give each thread its own.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter

from iscp_dagster.delta.log.columns import VisibleColumns, get_visible_columns
from iscp_dagster.delta.log.commit import FEED_PROPERTY, Commit, FeedFile, PartitionValues, Volume
from iscp_dagster.delta.log.commits import CommitLog, format_commit_name
from iscp_dagster.delta.log.facts import (
    VECTORS,
    DataFile,
    SnapshotReader,
    TableFacts,
    TenantSize,
    parse_tenant,
)
from iscp_dagster.delta.log.files import LogFiles, open_log_files, to_spark_path
from iscp_dagster.delta.log.mark import LogMark
from iscp_dagster.delta.log.row_tenants import RowTenants
from iscp_dagster.model.declared.schema import parse_stored_columns
from iscp_dagster.model.declared.tables import DEFAULT_TENANT
from iscp_dagster.model.errors import SourceError
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.spark.quoting import quote_identifier

MAX_FACTS_HELD = 8
MAX_DERIVED_VERSIONS = 1_000
MARK_CHECK_SECONDS = 60.0
"""In an object store, between two checks that the last commit is still the same file."""
LATEST_SECONDS = 1.0
"""In an object store, how long `get_latest_moment` reuses what it found."""

_ByTenant = dict[str | None, list[tuple[int, Volume]]]
_Volumes = Mapping[str | None, Volume]
MAX_VOLUMES_HELD = 200_000
"""Tenants of commits whose volumes are kept."""


@dataclass
class DeltaLog:
    """The log of the table at `location`: a path, a file:// URL, or another store's URL.

    `tenant_column` is the partition column whose values are the tenants, or with `tenant_in_rows`
    any column; without one the table has the single tenant `default`. `options` are deltalake's
    storage options.
    Every method raises SourceError, with the path and the remedy, when there is no table.
    """

    location: str
    tenant_column: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    tenant_in_rows: bool = False
    monotonic: Callable[[], float] = time.monotonic
    files: LogFiles = field(init=False, repr=False)
    log: CommitLog = field(init=False, repr=False)
    _mark: LogMark | None = field(default=None, init=False, repr=False)
    _facts: OrderedDict[int, TableFacts] = field(
        default_factory=OrderedDict, init=False, repr=False
    )
    _index: tuple[int, int, _ByTenant] | None = field(default=None, init=False, repr=False)
    _snapshot_reader: SnapshotReader | None = field(default=None, init=False, repr=False)
    """Dropped by each `poll`, so that a runner of many tables keeps none of them open."""
    _volumes: OrderedDict[int, _Volumes | None] = field(
        default_factory=OrderedDict, init=False, repr=False
    )
    """Of commits whose rows had to be read to find their tenants."""
    _sizes: tuple[int, dict[str | None, TenantSize]] | None = field(
        default=None, init=False, repr=False
    )
    """Of the last snapshot whose rows had to be read; dropped with its reader."""
    _checked_mark: LogMark | None = field(default=None, init=False, repr=False)
    _checked_at: float = field(default=0.0, init=False, repr=False)
    _polled_at: float = field(default=float("-inf"), init=False, repr=False)

    def __post_init__(self) -> None:
        self.files = open_log_files(self.location, dict(self.options))
        self.log = CommitLog(self.location, self.files)

    def poll(self, prior: LogMark | None = None) -> LogMark:
        """The mark of the latest commit; `prior` itself when nothing happened since.

        A mark of another table means that the table was recreated; a mark of the same table
        whose moment is not after `prior` means that its log was restored to an earlier state.
        """
        self._snapshot_reader = self._sizes = None
        return self._poll(prior)

    def _poll(self, prior: LogMark | None) -> LogMark:
        self._polled_at = self.monotonic()
        if self._mark not in {None, prior} and not self._is_mark_valid_now(self._mark):
            self._clear_caches()
        if prior is not None and self._is_mark_valid(prior) and self._is_last(prior.moment.version):
            self._mark = prior
            return prior
        # Facts about the table are kept across the next commit, if the log is still the same.
        is_valid = self._is_mark_valid_now(prior)
        if not is_valid:
            self._clear_caches()
        last = self.log.find_last_version(
            prior.moment.version if prior is not None and is_valid else None
        )
        self._mark = self._make_mark(last)
        return self._mark

    def is_latest(self, mark: LogMark) -> bool:
        """Whether `mark` is still the latest commit; changes nothing."""
        return self._is_mark_valid(mark) and self._is_last(mark.moment.version)

    def get_latest_moment(self) -> Moment:
        """The latest commit; after the first call it costs as much as `poll`, or nothing."""
        age = self.monotonic() - self._polled_at
        if self._mark is not None and not self.files.local and age < LATEST_SECONDS:
            return self._mark.moment
        return self._poll(self._mark).moment

    def get_table_id(self, version: int | None = None) -> str:
        """The `metaData.id` as of `version` (None: the latest).

        A different id means a different table at the same path, even where the log continues
        (CREATE OR REPLACE TABLE).
        """
        return self.get_facts(version).metadata.table_id

    def get_facts(self, version: int | None = None) -> TableFacts:
        """Schema, partition columns, properties and protocol as of `version` (None: the latest)."""
        target = self.get_latest_moment().version if version is None else version
        if target not in self._facts:
            self._facts[target] = self._derive_facts(
                target
            ) or self._get_snapshot_reader().read_facts(target)
            if len(self._facts) > MAX_FACTS_HELD:
                self._facts.popitem(last=False)
        return self._facts[target]

    def get_moment(self, version: int) -> Moment:
        """The commit's moment. Raises FeedGoneError when the log no longer holds the commit."""
        return self.log.get_moment(version)

    def has_moment(self, moment: Moment) -> bool:
        """Whether the log contains the commit of that version and time, as far as it can tell.

        False where the log ends before it or has another commit there: it was restored to an
        earlier state, or copied without its files' times.
        """
        if moment.version <= START.version:
            return True
        if moment.version > self.get_latest_moment().version:
            return False
        gone = self.log.read_commit(moment.version) is None
        return gone or self.get_moment(moment.version).micros == moment.micros

    def has_commit(self, version: int) -> bool:
        """Whether the commit's file is still there."""
        return self.files.read_mark(format_commit_name(version)) is not None

    def can_open(self, version: int) -> bool:
        """Whether the log still describes the table as of `version`: its cleanup ends that."""
        try:
            self._get_snapshot_reader().read_facts(version)
        except SourceError:
            return False
        return True

    def can_continue_from(self, mark: LogMark) -> bool:
        """Whether the log continues from the mark's commit; True if that was cleaned up since."""
        name = format_commit_name(mark.moment.version)
        return self._is_mark_valid(mark) or (
            mark.moment < self.get_latest_moment() and self.files.read_mark(name) is None
        )

    def read_commits(self, after: int, upto: int) -> Iterator[Commit | None]:
        """The commits of (after, upto] in order; None for one that the log no longer holds."""
        return map(self.log.read_commit, range(after + 1, upto + 1))

    def list_changed_tenants(self, after: int, upto: int) -> set[str] | None:
        """The tenants with changed rows in (after, upto]; None when the log does not say.

        Commits that change no rows (OPTIMIZE, properties, VACUUM) change no tenant; rows without
        a tenant (`parse_tenant`) are left out (see `has_unnamed_changes`).
        """
        totals = self._sum_changed_bytes(after, upto)
        return None if totals is None else {tenant for tenant in totals if tenant is not None}

    def has_unnamed_changes(self, after: int, upto: int) -> bool:
        """Whether rows without a tenant were added or removed in (after, upto], or may be."""
        totals = self._sum_changed_bytes(after, upto)
        return totals is None or None in totals

    def get_unnamed_size(self, version: int | None = None) -> TenantSize | None:
        """The size of the snapshot's rows without a tenant (`parse_tenant`); None if none."""
        if self.tenant_column is None:
            return None
        column, at = self.get_tenant_column(version), self.get_facts(version).version
        if self._get_row_tenants(at) is not None:
            return self._measure_tenants(at).get(None)
        reader = self._get_snapshot_reader()
        return (
            reader.get_tenant_sizes(column, at)[None]
            if None in reader.list_tenants(column, at)
            else None
        )

    def find_last_changes(self, after: int, upto: int) -> dict[str, int] | None:
        """Per tenant the last version in (after, upto] that changed its rows; None if unknown."""
        changes = self._read_changes(after, upto)
        if changes is None:
            return None
        return {tenant: version for version, tenant, _ in changes if tenant is not None}

    def can_tell_tenants(self, after: int, upto: int) -> bool:
        """Whether the log can tell which tenants changed in (after, upto]."""
        return self._index_changes(after, upto) is not None

    def find_first_change(self, tenant: str, after: int, upto: int) -> int | None:
        """The first version in (after, upto] that changed the tenant's rows; None: none did.

        Valid only for a range where `can_tell_tenants`.
        """
        changes = self._index_changes(after, upto) or {}
        return next((version for version, _ in changes.get(tenant, ()) if version > after), None)

    def find_first_column_change(self, after: int, upto: int) -> int | None:
        """The first version in (after, upto] from which existing rows may read differently, or that
        the log lacks; None if the columns show the same (`get_visible_columns`).
        """
        columns: VisibleColumns | None = None
        for version, commit in enumerate(self.read_commits(after, upto), start=after + 1):
            if commit is None:
                return version
            if commit.metadata is None:
                continue
            columns = self._get_visible_columns(version - 1) if columns is None else columns
            if get_visible_columns(parse_stored_columns(commit.metadata.schema)) != columns:
                return version
        return None

    def list_written_volumes(
        self, after: int, upto: int, tenants: Collection[str]
    ) -> list[tuple[int, Volume]] | None:
        """(version, bytes and rows) of every change of these tenants; None if unknown."""
        changes = self._index_changes(after, upto)
        if changes is None:
            return None
        tenant_changes = [change for tenant in tenants for change in changes.get(tenant, ())]
        return sorted((change for change in tenant_changes if change[0] > after), key=itemgetter(0))

    def has_only_adds(self, after: int, upto: int, tenants: Collection[str]) -> bool:
        """Whether these tenants only gained rows in (after, upto]; False where that is unknown."""
        column, lacks_tenant = self._get_physical_tenant(upto), False
        row_tenants = self._get_row_tenants(upto)
        for commit in self.read_commits(after, upto):
            if commit is None or commit.rewritten is None:
                return False
            if row_tenants is not None:
                rewritten = [file for file in commit.feed or () if file.action != "add"]
                volumes = None if commit.feed is None else row_tenants.sum_volumes(rewritten)
                if volumes is None or not volumes.keys().isdisjoint(tenants):
                    return False
                continue
            lacks_tenant = lacks_tenant or _has_unnamed_tenant(commit.rewritten, column)
            unsure = lacks_tenant and commit.metadata is not None
            if unsure or any(_has_rows_of(values, column, tenants) for values in commit.rewritten):
                return False
        return True

    def list_opened_files(self, version: int) -> list[tuple[str | None, str]]:
        """(tenant or None for all, path) of the first files that readers of the commit's feed open.

        Empty for a commit that the log no longer holds.
        """
        column, commit = self._get_physical_tenant(version), self.log.read_commit(version)
        files = () if commit is None else commit.opened_files
        return [(_get_reading_tenant(file.partition, column), file.path) for file in files]

    def list_feed_files(
        self, after: int, upto: int, tenants: Collection[str]
    ) -> list[tuple[int, FeedFile]] | None:
        """(version, file) of every file in these tenants' feed of (after, upto]; with
        `tenant_in_rows` it may have rows of others.

        None where the feed is more than files, or the log does not say.
        """
        column, facts, differs = self._get_physical_tenant(upto), self.get_facts(upto), False
        names = {facts.get_physical_name(name) for name in facts.metadata.partition_columns}
        row_tenants = self._get_row_tenants(upto)
        files = []
        for commit in self.read_commits(after, upto):
            if commit is None or commit.feed is None:
                return None
            differs = differs or any(dict(file.partition).keys() != names for file in commit.feed)
            if differs and commit.metadata is not None:
                return None
            if row_tenants is not None:
                volumes = self._sum_row_volumes(commit, row_tenants)
                skips = volumes is not None and volumes.keys().isdisjoint(tenants)
                files += [] if skips else [(commit.version, file) for file in commit.feed]
                continue
            files += [
                (commit.version, file)
                for file in commit.feed
                if _has_rows_of(file.partition, column, tenants)
            ]
        return files

    def get_bytes_written(self, after: int, upto: int) -> Mapping[str, int]:
        """Bytes written in (after, upto] per tenant; empty where the log does not say."""
        totals = self._sum_changed_bytes(after, upto) or {}
        return {tenant: size for tenant, size in totals.items() if tenant is not None}

    def list_tenants(self, version: int | None = None) -> list[str]:
        """All tenants in the snapshot that have a name, sorted."""
        facts = self.get_facts(version)
        if self.tenant_column is None:
            return [DEFAULT_TENANT]
        column = self.get_tenant_column(version)
        tenants: Collection[str | None]
        if self._get_row_tenants(facts.version) is not None:
            tenants = self._measure_tenants(facts.version)
        else:
            tenants = self._get_snapshot_reader().list_tenants(column, facts.version)
        return sorted(tenant for tenant in tenants if tenant is not None)

    def get_tenant_sizes(self, version: int | None = None) -> dict[str, TenantSize]:
        """Files, bytes and stored rows per tenant of the snapshot."""
        sizes = self._measure_tenants(self.get_facts(version).version)
        if self.tenant_column is None:
            return {DEFAULT_TENANT: sizes[None]} if sizes else {}
        return {tenant: size for tenant, size in sizes.items() if tenant is not None}

    def _measure_tenants(self, version: int) -> Mapping[str | None, TenantSize]:
        """The sizes of all tenants, and of the rows without one; as `SnapshotReader` has them."""
        reader, row_tenants = self._get_snapshot_reader(), self._get_row_tenants(version)
        if row_tenants is None:
            column = None if self.tenant_column is None else self.get_tenant_column(version)
            return reader.get_tenant_sizes(column, version)
        if self._sizes is None or self._sizes[0] != version:
            vectors = VECTORS in self.get_facts(version).reader_features
            files = reader.list_data_files(version, vectors=vectors)
            self._sizes = version, row_tenants.measure_tenants(files)
        return self._sizes[1]

    def list_data_files(self, version: int, tenants: Collection[str]) -> list[DataFile]:
        """The files of the snapshot that hold, or may hold, rows of these tenants."""
        vectors = VECTORS in self.get_facts(version).reader_features
        files = self._get_snapshot_reader().list_data_files(version, vectors=vectors)
        if self.tenant_column is None:
            return files if DEFAULT_TENANT in tenants else []
        column = self.get_tenant_column(version)
        if self._get_row_tenants(version) is not None:
            return files if tenants else []
        return [file for file in files if file.get_tenant(column) in tenants]

    def count_rows(self, version: int, tenants: Collection[str]) -> dict[str, int]:
        """How many rows these tenants have at the version, by the statistics of their files.

        Leaves out tenants with a file whose row count, deleted rows or tenants are unknown.
        """
        column = None if self.tenant_column is None else self.get_tenant_column(version)
        if self._get_row_tenants(version) is not None:
            return {}
        vectors = VECTORS in self.get_facts(version).reader_features
        counts: dict[str, int | None] = dict.fromkeys(tenants, 0)
        for file in self.list_data_files(version, tenants):
            tenant = DEFAULT_TENANT if column is None else str(file.get_tenant(column))
            total, live = counts[tenant], file.live_rows if vectors else file.rows
            counts[tenant] = None if total is None or live is None else total + live
        return {tenant: count for tenant, count in counts.items() if count is not None}

    def get_tenant_column(self, version: int | None = None) -> str:
        """The tenant column. Raises SourceError if the table does not have it, or is not
        partitioned by it without `tenant_in_rows`.
        """
        facts = self.get_facts(version)
        columns, names = facts.metadata.partition_columns, [field.name for field in facts.fields]
        if self.tenant_column in (names if self.tenant_in_rows else columns):
            return str(self.tenant_column)
        if self.tenant_column not in names:
            raise SourceError(
                f"There is no tenant column {self.tenant_column!r}; the columns of {self.location} "
                f"are: {', '.join(names)}. Correct tenant=."
            )
        table = f"delta.{quote_identifier(to_spark_path(self.location))}"
        hint = f"declare one of them as the tenant (tenant={columns[0]!r}), or " if columns else ""
        raise SourceError(
            f"The tenant column {self.tenant_column!r} of {self.location} is not a partition "
            f"column; these are: {', '.join(columns) or 'none'}. Declare buckets=64, so that "
            f"tenants share the partitions of its indexes, {hint}declare no tenant, "
            "so that all rows belong to the one tenant 'default', or partition the table by it, "
            "and write its other properties, its constraints and its columns' comments into the "
            "statement too, since the new table has only what it says: "
            f"CREATE OR REPLACE TABLE {table} USING delta "
            f"PARTITIONED BY ({quote_identifier(str(self.tenant_column))}) "
            f"TBLPROPERTIES ({FEED_PROPERTY} = true) "
            f"AS SELECT * FROM {table}"
        )

    def _sum_changed_bytes(self, after: int, upto: int) -> dict[str | None, int] | None:
        changes = self._read_changes(after, upto)
        if changes is None:
            return None
        totals: dict[str | None, int] = {}
        for _, tenant, volume in changes:
            totals[tenant] = totals.get(tenant, 0) + volume.bytes
        return totals

    def _read_changes(self, after: int, upto: int) -> list[tuple[int, str | None, Volume]] | None:
        """Version, tenant and volume of every change in (after, upto], in order."""
        changes: list[tuple[int, str | None, Volume]] = []
        column, lacks_tenant = self._get_physical_tenant(upto), False
        row_tenants = self._get_row_tenants(upto)
        for commit in self.read_commits(after, upto):
            if commit is None or commit.changed is None:
                return None
            if row_tenants is not None:
                volumes = self._sum_row_volumes(commit, row_tenants)
                if volumes is None:
                    return None
                changes += [(commit.version, tenant, volume) for tenant, volume in volumes.items()]
                continue
            lacks_tenant = lacks_tenant or _has_unnamed_tenant(commit.changed, column)
            if lacks_tenant and commit.metadata is not None:
                return None
            for values, volume in commit.changed.items():
                tenant = (
                    DEFAULT_TENANT if column is None else parse_tenant(dict(values).get(column))
                )
                changes.append((commit.version, tenant, volume))
        return changes

    def _sum_row_volumes(self, commit: Commit, row_tenants: RowTenants) -> _Volumes | None:
        """The volume of each tenant in a commit, read from its files; None if unknown."""
        if commit.version not in self._volumes:
            feed = commit.feed
            self._volumes[commit.version] = None if feed is None else row_tenants.sum_volumes(feed)
            while sum(len(volumes or ()) for volumes in self._volumes.values()) > MAX_VOLUMES_HELD:
                if len(self._volumes) == 1:
                    break
                self._volumes.popitem(last=False)
        return self._volumes[commit.version]

    def _get_row_tenants(self, version: int) -> RowTenants | None:
        """What reads the tenants of rows; None where partition values say them."""
        if self.tenant_column is None or not self.tenant_in_rows:
            return None
        facts, column = self.get_facts(version), self.get_tenant_column(version)
        if column in facts.metadata.partition_columns:
            return None
        return RowTenants(self.location, facts.get_physical_name(column), self.options)

    def _index_changes(self, after: int, upto: int) -> _ByTenant | None:
        """The changes of (after, upto], or more, by tenant: one pass serves many tenants."""
        if self._index is None or self._index[1] != upto or after < self._index[0]:
            changes = self._read_changes(after, upto)
            if changes is None:
                return None
            by_tenant: _ByTenant = {}
            for version, tenant, volume in changes:
                by_tenant.setdefault(tenant, []).append((version, volume))
            self._index = after, upto, by_tenant
        return self._index[2]

    def _get_physical_tenant(self, version: int) -> str | None:
        """The tenant column as commits name it."""
        if self.tenant_column is None:
            return None
        return self.get_facts(version).get_physical_name(self.get_tenant_column(version))

    def _derive_facts(self, version: int) -> TableFacts | None:
        """The facts, derived without deltalake from another version's and the commits between."""
        earlier = max((candidate for candidate in self._facts if candidate < version), default=None)
        if earlier is None:
            return self._derive_earlier_facts(version)
        if version - earlier > MAX_DERIVED_VERSIONS:
            return None
        facts = self._facts[earlier]
        for commit in self.read_commits(earlier, version):
            if commit is None:
                return None
            facts = facts.apply_commit(commit)
        return facts

    def _derive_earlier_facts(self, version: int) -> TableFacts | None:
        """The facts of a later version, if no commit in between changed them."""
        later = min((candidate for candidate in self._facts if candidate > version), default=None)
        if version < 0 or later is None or later - version > MAX_DERIVED_VERSIONS:
            return None
        for commit in self.read_commits(version, later):
            if commit is None or commit.metadata or commit.reader_features is not None:
                return None
        return replace(self._facts[later], version=version)

    def _get_visible_columns(self, version: int) -> VisibleColumns | None:
        """None where the log no longer describes the table at the version."""
        try:
            return get_visible_columns(self.get_facts(version).fields)
        except SourceError:
            return None

    def _is_mark_valid(self, mark: LogMark, within: float = MARK_CHECK_SECONDS) -> bool:
        """Whether the commit's file is still the marked one.

        In an object store, a check less than `within` seconds old counts.
        """
        now = self.monotonic()
        if not self.files.local and self._checked_mark == mark and now - self._checked_at < within:
            return True
        file_mark = self.files.read_mark(format_commit_name(mark.moment.version))
        is_valid = file_mark is not None and file_mark.identity == mark.identity
        self._checked_mark, self._checked_at = mark if is_valid else None, now
        return is_valid

    def _is_mark_valid_now(self, mark: LogMark | None) -> bool:
        return mark is not None and self._is_mark_valid(mark, within=0.0)

    def _is_last(self, version: int) -> bool:
        return self.files.read_mark(format_commit_name(version + 1)) is None

    def _make_mark(self, version: int) -> LogMark:
        mark, moment = self.log.read_mark_and_moment(version)
        return LogMark(moment, LogMark.hash_table_id(self.get_table_id(version)), mark.identity)

    def _get_snapshot_reader(self) -> SnapshotReader:
        if self._snapshot_reader is None:
            self._snapshot_reader = SnapshotReader(self.location, self.options)
        return self._snapshot_reader

    def _clear_caches(self) -> None:
        self._mark = None
        self._index = None
        self._snapshot_reader = self._sizes = None
        self._volumes.clear()
        self._facts.clear()
        self.log.clear()


def _has_unnamed_tenant(places: Iterable[PartitionValues], column: str | None) -> bool:
    """Whether some place does not name the tenant column.

    Its rows have no tenant, unless a later commit restates the table's columns: the table may not
    have been partitioned by that column before.
    """
    return column is not None and any(column not in dict(values) for values in places)


def _get_reading_tenant(partition: PartitionValues | None, column: str | None) -> str | None:
    """The tenant whose readers open files of this place; None if all tenants' readers do."""
    if partition is None:
        return None
    return DEFAULT_TENANT if column is None else dict(partition).get(column)


def _has_rows_of(
    values: PartitionValues, column: str | None, tenants: Collection[str | None]
) -> bool:
    """Whether a partition of these values has rows of these tenants."""
    return _get_reading_tenant(values, column) in tenants
