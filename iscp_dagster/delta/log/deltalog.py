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

from iscp_dagster.delta.log.columns import VisibleColumns, visible_columns
from iscp_dagster.delta.log.commit import FEED_PROPERTY, Commit, FeedFile, PartitionValues, Volume
from iscp_dagster.delta.log.commits import CommitLog, commit_name
from iscp_dagster.delta.log.facts import (
    VECTORS,
    DataFile,
    DeltaFacts,
    TableFacts,
    TenantSize,
    tenant_name,
)
from iscp_dagster.delta.log.files import LogFiles, log_files, spark_path
from iscp_dagster.delta.log.mark import LogMark
from iscp_dagster.model.declared.schema import table_columns
from iscp_dagster.model.declared.tables import DEFAULT_TENANT
from iscp_dagster.model.errors import SourceError
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.spark.quoting import ident

MAX_FACTS_HELD = 8
MAX_CARRIED = 1_000
STANDS_SECONDS = 60.0
"""In an object store, between two checks that the last commit is still the same file."""
LATEST_SECONDS = 1.0
"""In an object store, how long `latest` reuses what it found."""

_ByTenant = dict[str | None, list[tuple[int, Volume]]]


@dataclass
class DeltaLog:
    """The log of the table at `location`: a path, a file:// URL, or another store's URL.

    `tenant_column` is the partition column whose values are the tenants; without one the table
    has the single tenant `default`. `options` are deltalake's storage options.
    Every method raises SourceError, with the path and the remedy, when there is no table.
    """

    location: str
    tenant_column: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    monotonic: Callable[[], float] = time.monotonic
    files: LogFiles = field(init=False, repr=False)
    log: CommitLog = field(init=False, repr=False)
    _mark: LogMark | None = field(default=None, init=False, repr=False)
    _facts: OrderedDict[int, TableFacts] = field(
        default_factory=OrderedDict, init=False, repr=False
    )
    _index: tuple[int, int, _ByTenant] | None = field(default=None, init=False, repr=False)
    _lake: DeltaFacts | None = field(default=None, init=False, repr=False)
    """Dropped by each `poll`, so that a runner of many tables keeps none of them open."""
    _stood: LogMark | None = field(default=None, init=False, repr=False)
    _stood_at: float = field(default=0.0, init=False, repr=False)
    _polled_at: float = field(default=float("-inf"), init=False, repr=False)

    def __post_init__(self) -> None:
        self.files = log_files(self.location, dict(self.options))
        self.log = CommitLog(self.location, self.files)

    def poll(self, known: LogMark | None = None) -> LogMark:
        """The mark of the latest commit; `known` itself when nothing happened since.

        A mark of another table means that the table was recreated; a mark of the same table
        whose moment is not after `known` means that its log was restored to an earlier state.
        """
        self._lake = None
        return self._poll(known)

    def _poll(self, known: LogMark | None) -> LogMark:
        self._polled_at = self.monotonic()
        if self._mark not in {None, known} and not self._stands_now(self._mark):
            self._forget()
        if known is not None and self._stands(known) and self._is_last(known.moment.version):
            self._mark = known
            return known
        # Facts about the table are kept across the next commit, if the log is still the same.
        stands = self._stands_now(known)
        if not stands:
            self._forget()
        last = self.log.last_version(known.moment.version if known is not None and stands else None)
        self._mark = self._marked(last)
        return self._mark

    def ends_at(self, known: LogMark) -> bool:
        """Whether `known` is still the latest commit; changes nothing."""
        return self._stands(known) and self._is_last(known.moment.version)

    def latest(self) -> Moment:
        """The latest commit; after the first call it costs as much as `poll`, or nothing."""
        asked = self.monotonic() - self._polled_at
        if self._mark is not None and not self.files.local and asked < LATEST_SECONDS:
            return self._mark.moment
        return self._poll(self._mark).moment

    def table_id(self, version: int | None = None) -> str:
        """The `metaData.id` as of `version` (None: the latest).

        A different id means a different table at the same path, even where the log continues
        (CREATE OR REPLACE TABLE).
        """
        return self.facts(version).metadata.table_id

    def facts(self, version: int | None = None) -> TableFacts:
        """Schema, partition columns, properties and protocol as of `version` (None: the latest)."""
        wanted = self.latest().version if version is None else version
        if wanted not in self._facts:
            self._facts[wanted] = self._carried(wanted) or self._reader().at(wanted)
            if len(self._facts) > MAX_FACTS_HELD:
                self._facts.popitem(last=False)
        return self._facts[wanted]

    def moment(self, version: int) -> Moment:
        """The commit's moment. Raises FeedGoneError when the log no longer holds the commit."""
        return self.log.moment(version)

    def has(self, moment: Moment) -> bool:
        """Whether the log contains the commit of that version and time, as far as it can tell.

        False where the log ends before it or has another commit there: it was restored to an
        earlier state, or copied without its files' times.
        """
        if moment.version <= START.version:
            return True
        if moment.version > self.latest().version:
            return False
        gone = self.log.commit(moment.version) is None
        return gone or self.moment(moment.version).micros == moment.micros

    def holds(self, version: int) -> bool:
        """Whether the commit's file is still there."""
        return self.files.mark(commit_name(version)) is not None

    def can_open(self, version: int) -> bool:
        """Whether the log still describes the table as of `version`: its cleanup ends that."""
        try:
            self._reader().at(version)
        except SourceError:
            return False
        return True

    def goes_on_from(self, mark: LogMark) -> bool:
        """Whether the log continues from the mark's commit; True if that was cleaned up since."""
        name = commit_name(mark.moment.version)
        return self._stands(mark) or (mark.moment < self.latest() and self.files.mark(name) is None)

    def commits(self, after: int, upto: int) -> Iterator[Commit | None]:
        """The commits of (after, upto] in order; None for one that the log no longer holds."""
        return map(self.log.commit, range(after + 1, upto + 1))

    def changed_tenants(self, after: int, upto: int) -> set[str] | None:
        """The tenants with changed rows in (after, upto]; None when the log cannot tell.

        Commits that change no rows (OPTIMIZE, properties, VACUUM) change no tenant; rows without
        a tenant (`tenant_name`) are left out (see `unnamed`).
        """
        written = self._written(after, upto)
        return None if written is None else {each for each in written if each is not None}

    def changed_unnamed(self, after: int, upto: int) -> bool:
        """Whether rows without a tenant were added or removed in (after, upto], or may be."""
        written = self._written(after, upto)
        return written is None or None in written

    def unnamed(self, version: int | None = None) -> TenantSize | None:
        """The size of the snapshot's rows without a tenant (`tenant_name`); None if it has none."""
        if self.tenant_column is None:
            return None
        column, at = self.partition_column(version), self.facts(version).version
        reader = self._reader()
        return reader.sizes(column, at)[None] if None in reader.tenants(column, at) else None

    def last_changes(self, after: int, upto: int) -> dict[str, int] | None:
        """Per tenant the last version in (after, upto] that changed its rows; None: cannot tell."""
        changes = self._changes(after, upto)
        if changes is None:
            return None
        return {tenant: version for version, tenant, _ in changes if tenant is not None}

    def tells(self, after: int, upto: int) -> bool:
        """Whether the log can tell which tenants changed in (after, upto]."""
        return self._indexed(after, upto) is not None

    def first_change(self, tenant: str, after: int, upto: int) -> int | None:
        """The first version in (after, upto] that changed the tenant's rows; None: none did.

        Valid only for a range that the log `tells`.
        """
        changes = self._indexed(after, upto) or {}
        return next((version for version, _ in changes.get(tenant, ()) if version > after), None)

    def first_column_change(self, after: int, upto: int) -> int | None:
        """The first version in (after, upto] from which rows that stay may read otherwise, or that
        the log lacks; None: the columns show what they did (`visible_columns`).
        """
        seen: VisibleColumns | None = None
        for version, commit in enumerate(self.commits(after, upto), start=after + 1):
            if commit is None:
                return version
            if commit.metadata is None:
                continue
            seen = self._visible(version - 1) if seen is None else seen
            if visible_columns(table_columns(commit.metadata.schema)) != seen:
                return version
        return None

    def written(
        self, after: int, upto: int, tenants: Collection[str]
    ) -> list[tuple[int, Volume]] | None:
        """(version, bytes and rows) of every change of these tenants; None: cannot tell."""
        changes = self._indexed(after, upto)
        if changes is None:
            return None
        found = [each for tenant in tenants for each in changes.get(tenant, ())]
        return sorted((each for each in found if each[0] > after), key=itemgetter(0))

    def only_adds(self, after: int, upto: int, tenants: Collection[str]) -> bool:
        """Whether these tenants only gained rows in (after, upto]; False where that is unknown."""
        column, lacking = self._tenant_physical(upto), False
        for commit in self.commits(after, upto):
            if commit is None or commit.taken is None:
                return False
            lacking = lacking or _lacks(commit.taken, column)
            unsure = lacking and commit.metadata is not None
            if unsure or any(_is_of(values, column, tenants) for values in commit.taken):
                return False
        return True

    def opened(self, version: int) -> list[tuple[str | None, str]]:
        """(tenant, path) of the first files that readers of the commit's feed open; None: all do.

        Empty for a commit that the log no longer holds.
        """
        column, commit = self._tenant_physical(version), self.log.commit(version)
        probes = () if commit is None else commit.probes
        return [(_opener(probe.place, column), probe.path) for probe in probes]

    def feed_files(
        self, after: int, upto: int, tenants: Collection[str]
    ) -> list[tuple[int, FeedFile]] | None:
        """(version, file) of every file in these tenants' feed of (after, upto].

        None where files alone do not make up the feed, or the log cannot tell.
        """
        column, facts, unlike = self._tenant_physical(upto), self.facts(upto), False
        named = {facts.physical(each) for each in facts.metadata.partition_columns}
        found = []
        for commit in self.commits(after, upto):
            if commit is None or commit.feed is None:
                return None
            unlike = unlike or any(dict(file.place).keys() != named for file in commit.feed)
            if unlike and commit.metadata is not None:
                return None
            found += [
                (commit.version, file)
                for file in commit.feed
                if _is_of(file.place, column, tenants)
            ]
        return found

    def bytes_written(self, after: int, upto: int) -> Mapping[str, int]:
        """Bytes written in (after, upto] per tenant; empty where the log cannot tell."""
        written = self._written(after, upto) or {}
        return {tenant: size for tenant, size in written.items() if tenant is not None}

    def tenants(self, version: int | None = None) -> list[str]:
        """All tenants in the snapshot that have a name, sorted."""
        facts = self.facts(version)
        if self.tenant_column is None:
            return [DEFAULT_TENANT]
        found = self._reader().tenants(self.partition_column(version), facts.version)
        return sorted(tenant for tenant in found if tenant is not None)

    def tenant_sizes(self, version: int | None = None) -> dict[str, TenantSize]:
        """Files, bytes and stored rows per tenant of the snapshot."""
        column = None if self.tenant_column is None else self.partition_column(version)
        sizes = self._reader().sizes(column, self.facts(version).version)
        if column is None:
            return {DEFAULT_TENANT: sizes[None]} if sizes else {}
        return {tenant: size for tenant, size in sizes.items() if tenant is not None}

    def data_files(self, version: int, tenants: Collection[str]) -> list[DataFile]:
        """The files of the snapshot that hold rows of these tenants."""
        vectors = VECTORS in self.facts(version).reader_features
        files = self._reader().data_files(version, vectors=vectors)
        if self.tenant_column is None:
            return files if DEFAULT_TENANT in tenants else []
        column = self.partition_column(version)
        return [each for each in files if each.tenant(column) in tenants]

    def row_counts(self, version: int, tenants: Collection[str]) -> dict[str, int]:
        """How many rows these tenants have at the version, by the statistics of their files.

        Lacks the tenants of whose files the log does not say how many rows they have, or had.
        """
        column = None if self.tenant_column is None else self.partition_column(version)
        vectors = VECTORS in self.facts(version).reader_features
        counts: dict[str, int | None] = dict.fromkeys(tenants, 0)
        for file in self.data_files(version, tenants):
            tenant = DEFAULT_TENANT if column is None else str(file.tenant(column))
            known, live = counts[tenant], file.live_rows if vectors else file.rows
            counts[tenant] = None if known is None or live is None else known + live
        return {tenant: count for tenant, count in counts.items() if count is not None}

    def partition_column(self, version: int | None = None) -> str:
        """The tenant column. Raises SourceError unless the table is partitioned by it."""
        facts = self.facts(version)
        columns, names = facts.metadata.partition_columns, [each.name for each in facts.fields]
        if self.tenant_column in columns:
            return str(self.tenant_column)
        if self.tenant_column not in names:
            raise SourceError(
                f"There is no tenant column {self.tenant_column!r}; the columns of {self.location} "
                f"are: {', '.join(names)}. Correct tenant=."
            )
        table = f"delta.{ident(spark_path(self.location))}"
        held = f"declare one of them as the tenant (tenant={columns[0]!r}), or " if columns else ""
        raise SourceError(
            f"The tenant column {self.tenant_column!r} of {self.location} is not a partition "
            f"column; these are: {', '.join(columns) or 'none'}. Either {held}declare no tenant, "
            "so that all rows are of the one tenant 'default', or partition the table by it, "
            "and write its other properties, its constraints and its columns' comments into the "
            "statement too, since the new table has nothing but what is said there: "
            f"CREATE OR REPLACE TABLE {table} USING delta "
            f"PARTITIONED BY ({ident(str(self.tenant_column))}) "
            f"TBLPROPERTIES ({FEED_PROPERTY} = true) "
            f"AS SELECT * FROM {table}"
        )

    def _written(self, after: int, upto: int) -> dict[str | None, int] | None:
        changes = self._changes(after, upto)
        if changes is None:
            return None
        totals: dict[str | None, int] = {}
        for _, tenant, volume in changes:
            totals[tenant] = totals.get(tenant, 0) + volume.bytes
        return totals

    def _changes(self, after: int, upto: int) -> list[tuple[int, str | None, Volume]] | None:
        """Version, tenant and volume of every change in (after, upto], in order."""
        found: list[tuple[int, str | None, Volume]] = []
        column, lacking = self._tenant_physical(upto), False
        for commit in self.commits(after, upto):
            if commit is None or commit.changed is None:
                return None
            lacking = lacking or _lacks(commit.changed, column)
            if lacking and commit.metadata is not None:
                return None
            for values, volume in commit.changed.items():
                tenant = DEFAULT_TENANT if column is None else tenant_name(dict(values).get(column))
                found.append((commit.version, tenant, volume))
        return found

    def _indexed(self, after: int, upto: int) -> _ByTenant | None:
        """The changes of (after, upto], or of more, by tenant: one pass serves many tenants."""
        if self._index is None or self._index[1] != upto or after < self._index[0]:
            changes = self._changes(after, upto)
            if changes is None:
                return None
            by_tenant: _ByTenant = {}
            for version, tenant, volume in changes:
                by_tenant.setdefault(tenant, []).append((version, volume))
            self._index = after, upto, by_tenant
        return self._index[2]

    def _tenant_physical(self, version: int) -> str | None:
        """The tenant column as commits name it."""
        if self.tenant_column is None:
            return None
        return self.facts(version).physical(self.partition_column(version))

    def _carried(self, version: int) -> TableFacts | None:
        """The facts, derived without deltalake from another version's and the commits between."""
        earlier = max((each for each in self._facts if each < version), default=None)
        if earlier is None:
            return self._unchanged(version)
        if version - earlier > MAX_CARRIED:
            return None
        facts = self._facts[earlier]
        for commit in self.commits(earlier, version):
            if commit is None:
                return None
            facts = facts.after(commit)
        return facts

    def _unchanged(self, version: int) -> TableFacts | None:
        """The facts of a later version, if no commit in between changed them."""
        later = min((each for each in self._facts if each > version), default=None)
        if version < 0 or later is None or later - version > MAX_CARRIED:
            return None
        for commit in self.commits(version, later):
            if commit is None or commit.metadata or commit.reader_features is not None:
                return None
        return replace(self._facts[later], version=version)

    def _visible(self, version: int) -> VisibleColumns | None:
        """None where the log no longer describes the table at the version."""
        try:
            return visible_columns(self.facts(version).fields)
        except SourceError:
            return None

    def _stands(self, mark: LogMark, within: float = STANDS_SECONDS) -> bool:
        """Whether the mark's commit is the same file, or was less than `within` seconds ago."""
        now = self.monotonic()
        if not self.files.local and self._stood == mark and now - self._stood_at < within:
            return True
        found = self.files.mark(commit_name(mark.moment.version))
        stands = found is not None and found.identity == mark.identity
        self._stood, self._stood_at = mark if stands else None, now
        return stands

    def _stands_now(self, mark: LogMark | None) -> bool:
        return mark is not None and self._stands(mark, within=0.0)

    def _is_last(self, version: int) -> bool:
        return self.files.mark(commit_name(version + 1)) is None

    def _marked(self, version: int) -> LogMark:
        mark, moment = self.log.marked(version)
        return LogMark(moment, LogMark.shortened(self.table_id(version)), mark.identity)

    def _reader(self) -> DeltaFacts:
        if self._lake is None:
            self._lake = DeltaFacts(self.location, self.options)
        return self._lake

    def _forget(self) -> None:
        self._mark = None
        self._index = None
        self._lake = None
        self._facts.clear()
        self.log.forget()


def _lacks(places: Iterable[PartitionValues], column: str | None) -> bool:
    """Whether some place does not name the tenant column.

    Its rows have no tenant, unless a later commit restates the table's columns: the table may not
    have been partitioned by that column before.
    """
    return column is not None and any(column not in dict(values) for values in places)


def _opener(place: PartitionValues | None, column: str | None) -> str | None:
    """The tenant whose readers open files of this place; None if all tenants' readers do."""
    if place is None:
        return None
    return DEFAULT_TENANT if column is None else dict(place).get(column)


def _is_of(values: PartitionValues, column: str | None, tenants: Collection[str | None]) -> bool:
    """Whether a partition of these values has rows of these tenants."""
    return _opener(values, column) in tenants
