"""Whether a range can be read from the change feed, or only as a snapshot, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from iscp_dagster.delta.log.columns import format_visible_type, get_visible_columns
from iscp_dagster.delta.log.commit import Commit
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.read_plans import ReadKind, ReadPlan
from iscp_dagster.model.declared.schema import DeltaField, parse_stored_columns
from iscp_dagster.model.errors import SourceError
from iscp_dagster.model.moment import START


@dataclass(frozen=True, kw_only=True)
class FeedState:
    """Whether the change feed of a range is complete; `reason` says why not."""

    available: bool
    reason: str = ""


AVAILABLE = FeedState(available=True)


def plan_read(
    log: DeltaLog, after: int, upto: int, tenants: Collection[str] | None = None
) -> ReadPlan:
    """Plan how to read (after, upto] from only the log, for some `tenants` or all.

    A TAIL may still fail with FeedGoneError while Spark reads (a VACUUM in between); the caller
    then reads a snapshot.
    """
    if after <= START.version:
        return ReadPlan(kind=ReadKind.SNAPSHOT, reason="first synchronization")
    if upto < after:
        reason = f"the table went back from version {after} to {upto}"
        return ReadPlan(kind=ReadKind.SNAPSHOT, reason=reason)
    state = get_feed_state(log, after, upto, tenants)
    if state.available:
        return ReadPlan(kind=ReadKind.TAIL, reason=f"changes of versions {after + 1} to {upto}")
    return ReadPlan(kind=ReadKind.SNAPSHOT, reason=state.reason)


@dataclass(frozen=True, kw_only=True)
class ChangeFeed:
    """A table's change feed, for many tenants: what is the same for all is looked up once.

    Valid until the log is polled again.
    """

    log: DeltaLog
    _breaks: dict[tuple[int, int], FeedState | None] = field(
        default_factory=dict, init=False, repr=False
    )
    _drops: dict[tuple[int, int], int | None] = field(default_factory=dict, init=False, repr=False)
    _opened_files: dict[str | None, list[tuple[int, str]]] = field(
        default_factory=dict, init=False, repr=False
    )
    """By tenant (None: all), version and path of each file that a reader of its feed opens."""
    _loaded_versions: set[int] = field(default_factory=set, init=False, repr=False)
    """The versions that `_opened_files` covers."""

    def get_state(self, after: int, upto: int, tenants: Collection[str] | None = None) -> FeedState:
        """Check whether the change feed of (after, upto] can be read.

        It cannot if commits are gone from the log, the feed was off, a column was renamed, dropped
        or retyped, the partition columns changed, or (seen on a local disk only) VACUUM removed
        data files. Costs reading the range's commits.
        """
        if after >= upto:
            return AVAILABLE
        if (after, upto) not in self._breaks:
            self._breaks[after, upto] = _find_break(self.log, after, upto)
        return self._breaks[after, upto] or self._get_file_state(after, upto, tenants)

    def find_first_drop(self, after: int, upto: int) -> int | None:
        """The first commit in (after, upto] that drops columns and does nothing else.

        None also where the log lacks a commit, or the columns before it.
        """
        if (after, upto) not in self._drops:
            self._drops[after, upto] = _find_first_drop(self.log, after, upto)
        return self._drops[after, upto]

    def _get_file_state(self, after: int, upto: int, tenants: Collection[str] | None) -> FeedState:
        """Check the files of these tenants; those of others are not opened, and may be gone."""
        self._load_opened_files(after, upto)
        readers = self._opened_files if tenants is None else {*tenants, None}
        paths = [
            path
            for tenant in readers
            for version, path in self._opened_files.get(tenant, ())
            if after < version <= upto
        ]
        if self.log.files.find_missing(paths) is None:
            return AVAILABLE
        # One reason for all tenants, so that they are read together.
        return _build_unavailable(
            f"VACUUM removed files of the changes of versions {after + 1} to {upto}"
        )

    def _load_opened_files(self, after: int, upto: int) -> None:
        """Find the files that readers of (after, upto] open; the log must have all its commits."""
        for version in range(after + 1, upto + 1):
            if version in self._loaded_versions:
                continue
            self._loaded_versions.add(version)
            for tenant, path in self.log.list_opened_files(version):
                self._opened_files.setdefault(tenant, []).append((version, path))


def get_feed_state(
    log: DeltaLog, after: int, upto: int, tenants: Collection[str] | None = None
) -> FeedState:
    """Check one range as `ChangeFeed.get_state` does."""
    return ChangeFeed(log=log).get_state(after, upto, tenants)


def _build_unavailable(reason: str) -> FeedState:
    return FeedState(available=False, reason=reason)


def _find_break(log: DeltaLog, after: int, upto: int) -> FeedState | None:
    """Why nobody can read the range: commits are gone, the feed was off, or columns changed."""
    entries = list(log.read_commits(after, upto))
    commits = [commit for commit in entries if commit is not None]
    if len(commits) < len(entries):
        return _build_unavailable(
            f"commit {after + 1 + entries.index(None)} is no longer in the log"
        )
    return _find_metadata_break(log, after, commits)


def _find_metadata_break(log: DeltaLog, after: int, commits: Sequence[Commit]) -> FeedState | None:
    """Why the range is broken: the feed was off, or columns changed other than by additions."""
    metadata_changes = [
        (commit.version, commit.metadata) for commit in commits if commit.metadata is not None
    ]
    if not metadata_changes and log.get_facts(commits[-1].version).metadata.feed_enabled:
        return None
    try:
        start = log.get_facts(after)
    except SourceError:
        return _build_unavailable(f"the log no longer describes the table at version {after}")
    if commits[0].metadata is None and not start.metadata.feed_enabled:
        return _build_unavailable(f"the change data feed was off at version {after + 1}")
    before, partition_columns = start.fields, sorted(start.metadata.partition_columns)
    if commits[0].metadata is not None and has_only_drops(before, commits[0]):
        # The feed is read from that commit on, with the columns that are left.
        before = parse_stored_columns(commits[0].metadata.schema)
    for version, metadata in metadata_changes:
        if not metadata.feed_enabled:
            return _build_unavailable(f"the change data feed was off at version {version}")
        fields = parse_stored_columns(metadata.schema)
        change = _find_schema_change(before, fields)
        if not change and sorted(metadata.partition_columns) != partition_columns:
            change = "the table was partitioned by other columns"
        if change:
            return _build_unavailable(f"{change} at version {version}")
        before = fields
    return None


def _find_first_drop(log: DeltaLog, after: int, upto: int) -> int | None:
    before = None
    for commit in log.read_commits(after, upto):
        if commit is None:
            return None
        if commit.metadata is None:
            continue
        try:
            before = before or log.get_facts(commit.version - 1).fields
        except SourceError:
            return None
        if has_only_drops(before, commit):
            return commit.version
        before = parse_stored_columns(commit.metadata.schema)
    return None


def has_only_drops(before: Collection[DeltaField], commit: Commit) -> bool:
    """Whether the commit drops some of the columns `before` it, and does nothing else."""
    if commit.metadata is None or commit.changed != {}:
        return False
    after = parse_stored_columns(commit.metadata.schema)
    return get_visible_columns(after) < get_visible_columns(before)


def _find_schema_change(before: Collection[DeltaField], after: Collection[DeltaField]) -> str:
    """How the first column was renamed, dropped or retyped; empty if none was."""
    by_physical_name = {column.physical: column for column in after}
    for column in before:
        current = by_physical_name.get(column.physical)
        if current is None:
            return f"column {column.name!r} was dropped"
        if current.name != column.name:
            return f"column {column.name!r} was renamed to {current.name!r}"
        if format_visible_type(current.type) != format_visible_type(column.type):
            return f"column {column.name!r} changed from {column.type} to {current.type}"
    return ""
