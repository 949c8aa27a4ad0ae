"""Whether a range can be read from the change feed, or only as a snapshot, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from iscp_dagster.delta.log.columns import visible_columns, visible_type
from iscp_dagster.delta.log.commit import Commit
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.plans import ReadKind, ReadPlan
from iscp_dagster.model.declared.schema import DeltaField, table_columns
from iscp_dagster.model.errors import SourceError
from iscp_dagster.model.moment import START


@dataclass(frozen=True, kw_only=True)
class FeedState:
    """Whether the change feed of a range is whole; `reason` says why not."""

    available: bool
    reason: str = ""


WHOLE = FeedState(available=True)


def read_range(
    log: DeltaLog, after: int, upto: int, tenants: Collection[str] | None = None
) -> ReadPlan:
    """Plan from the log alone how to read (after, upto], for some `tenants` or all.

    A TAIL may still fail with FeedGoneError while Spark reads (a VACUUM in between); the caller
    then reads a snapshot.
    """
    if after <= START.version:
        return ReadPlan(kind=ReadKind.SNAPSHOT, reason="first synchronization")
    if upto < after:
        reason = f"the table went back from version {after} to {upto}"
        return ReadPlan(kind=ReadKind.SNAPSHOT, reason=reason)
    state = feed_state(log, after, upto, tenants)
    if state.available:
        return ReadPlan(kind=ReadKind.TAIL, reason=f"changes of versions {after + 1} to {upto}")
    return ReadPlan(kind=ReadKind.SNAPSHOT, reason=state.reason)


@dataclass(frozen=True, kw_only=True)
class Feed:
    """A table's change feed, for many tenants: what is the same for all is looked up once.

    Valid until the log is polled again.
    """

    log: DeltaLog
    _breaks: dict[tuple[int, int], FeedState | None] = field(
        default_factory=dict, init=False, repr=False
    )
    _drops: dict[tuple[int, int], int | None] = field(default_factory=dict, init=False, repr=False)
    _opened: dict[str | None, list[tuple[int, str]]] = field(
        default_factory=dict, init=False, repr=False
    )
    """By tenant (None: all), version and path of each file that a reader of its feed opens."""
    _looked: set[int] = field(default_factory=set, init=False, repr=False)
    """The versions that `_opened` covers."""

    def state(self, after: int, upto: int, tenants: Collection[str] | None = None) -> FeedState:
        """Check whether the change feed of (after, upto] can be read.

        It cannot if commits are gone from the log, the feed was off, a column was renamed, dropped
        or retyped, the partition columns changed, or (seen on a local disk only) VACUUM removed
        data files. Costs reading the range's commits.
        """
        if after >= upto:
            return WHOLE
        if (after, upto) not in self._breaks:
            self._breaks[after, upto] = _broken(self.log, after, upto)
        return self._breaks[after, upto] or self._vacuumed(after, upto, tenants)

    def first_drop(self, after: int, upto: int) -> int | None:
        """The first commit in (after, upto] that drops columns and does nothing else.

        None also where the log lacks a commit, or the columns before it.
        """
        if (after, upto) not in self._drops:
            self._drops[after, upto] = _first_drop(self.log, after, upto)
        return self._drops[after, upto]

    def _vacuumed(self, after: int, upto: int, tenants: Collection[str] | None) -> FeedState:
        """Check the files of these tenants; those of others are not opened, and may be gone."""
        self._look(after, upto)
        read = self._opened if tenants is None else {*tenants, None}
        opened = [
            path
            for tenant in read
            for version, path in self._opened.get(tenant, ())
            if after < version <= upto
        ]
        if self.log.files.missing(opened) is None:
            return WHOLE
        # One reason for all tenants, so that they are read together.
        return _gone(f"VACUUM removed files of the changes of versions {after + 1} to {upto}")

    def _look(self, after: int, upto: int) -> None:
        """Find the files that readers of (after, upto] open; the log must have all its commits."""
        for version in range(after + 1, upto + 1):
            if version in self._looked:
                continue
            self._looked.add(version)
            for tenant, path in self.log.opened(version):
                self._opened.setdefault(tenant, []).append((version, path))


def feed_state(
    log: DeltaLog, after: int, upto: int, tenants: Collection[str] | None = None
) -> FeedState:
    """Check once what `Feed.state` checks for many."""
    return Feed(log=log).state(after, upto, tenants)


def _gone(reason: str) -> FeedState:
    return FeedState(available=False, reason=reason)


def _broken(log: DeltaLog, after: int, upto: int) -> FeedState | None:
    """Why nobody can read the range: commits are gone, the feed was off, or columns changed."""
    found = list(log.commits(after, upto))
    commits = [commit for commit in found if commit is not None]
    if len(commits) < len(found):
        return _gone(f"commit {after + 1 + found.index(None)} is no longer in the log")
    return _changed(log, after, commits)


def _changed(log: DeltaLog, after: int, commits: Sequence[Commit]) -> FeedState | None:
    """Why the range is broken: the feed was off, or columns changed other than by additions."""
    stated = [(each.version, each.metadata) for each in commits if each.metadata is not None]
    if not stated and log.facts(commits[-1].version).metadata.feed_enabled:
        return None
    try:
        start = log.facts(after)
    except SourceError:
        return _gone(f"the log no longer describes the table at version {after}")
    if commits[0].metadata is None and not start.metadata.feed_enabled:
        return _gone(f"the change data feed was off at version {after + 1}")
    before, partitioned = start.fields, sorted(start.metadata.partition_columns)
    if commits[0].metadata is not None and only_drops(before, commits[0]):
        # The feed is read from that commit on, with the columns that are left.
        before = table_columns(commits[0].metadata.schema)
    for version, metadata in stated:
        if not metadata.feed_enabled:
            return _gone(f"the change data feed was off at version {version}")
        fields = table_columns(metadata.schema)
        change = _incompatible(before, fields)
        if not change and sorted(metadata.partition_columns) != partitioned:
            change = "the table was partitioned by other columns"
        if change:
            return _gone(f"{change} at version {version}")
        before = fields
    return None


def _first_drop(log: DeltaLog, after: int, upto: int) -> int | None:
    before = None
    for commit in log.commits(after, upto):
        if commit is None:
            return None
        if commit.metadata is None:
            continue
        try:
            before = before or log.facts(commit.version - 1).fields
        except SourceError:
            return None
        if only_drops(before, commit):
            return commit.version
        before = table_columns(commit.metadata.schema)
    return None


def only_drops(before: Collection[DeltaField], commit: Commit) -> bool:
    """Whether the commit drops some of the columns `before` it, and does nothing else."""
    if commit.metadata is None or commit.changed != {}:
        return False
    after = table_columns(commit.metadata.schema)
    return visible_columns(after) < visible_columns(before)


def _incompatible(before: Collection[DeltaField], after: Collection[DeltaField]) -> str:
    """How the first column was renamed, dropped or retyped; empty if none was."""
    now = {each.physical: each for each in after}
    for each in before:
        other = now.get(each.physical)
        if other is None:
            return f"column {each.name!r} was dropped"
        if other.name != each.name:
            return f"column {each.name!r} was renamed to {other.name!r}"
        if visible_type(other.type) != visible_type(each.type):
            return f"column {each.name!r} changed from {each.type} to {other.type}"
    return ""
