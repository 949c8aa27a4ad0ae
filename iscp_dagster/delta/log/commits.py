"""The commits of one table's log: the last one, and when each was made and what it did.

Each commit is read once and kept; call `forget` when the log turns out to be another one.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from iscp_dagster.delta.log.commit import Commit, parse_commit
from iscp_dagster.delta.log.files import LOG_FOLDER, FileMark, LogFiles
from iscp_dagster.model.errors import FeedGoneError, NoTableError
from iscp_dagster.model.moment import Moment

COMMIT_NAME = re.compile(r"^(\d{20})\.(json|checkpoint(?:\..+)?\.(?:parquet|json))$")
MAX_STEPS = 64
MAX_COMMITS_HELD = 2_000
MILLISECOND = 1_000


@dataclass
class CommitLog:
    """The log in `files`; errors name the table by `location`."""

    location: str
    files: LogFiles
    _held: OrderedDict[int, Commit] = field(default_factory=OrderedDict, init=False, repr=False)
    _moments: dict[int, Moment] = field(default_factory=dict, init=False, repr=False)
    """Of the commits in `_held`."""

    def commit(self, version: int) -> Commit | None:
        """What the version did; None when the log no longer holds it."""
        if version not in self._held:
            content = self.files.read(commit_name(version))
            if content is None:
                return None
            self._held[version] = parse_commit(version, content)
            if len(self._held) > MAX_COMMITS_HELD:
                gone, _ = self._held.popitem(last=False)
                self._moments.pop(gone, None)
        return self._held[version]

    def forget(self) -> None:
        self._held.clear()
        self._moments.clear()

    def moment(self, version: int) -> Moment:
        """The commit's moment: its in-commit timestamp, else its file's time, as Delta does.

        Raises FeedGoneError when the log no longer holds the commit.
        """
        if version in self._moments:
            return self._moments[version]
        return self.marked(version)[1]

    def marked(self, version: int) -> tuple[FileMark, Moment]:
        """The mark of the commit's file, see `mark`, and the commit's moment."""
        mark, commit = self.mark(version), self.commit(version)
        stamped = None if commit is None else commit.in_commit_micros
        micros = self._file_micros(version, mark) if stamped is None else stamped
        moment = Moment(version, micros)
        if version in self._held:
            self._moments[version] = moment
        return mark, moment

    def last_version(self, known: int | None = None) -> int:
        """The latest version: steps on from a known commit, and lists the log after `MAX_STEPS`.

        Raises NoTableError when there is no log.
        """
        for version in range(known + 1, known + 1 + MAX_STEPS) if known is not None else ():
            if self.files.mark(commit_name(version)) is None:
                return version - 1
        versions = logged_versions(self.files.names())
        if not versions:
            raise NoTableError(
                f"There is no Delta table at {self.location}: it has no {LOG_FOLDER} with commits. "
                "Correct the path of the source table, or create and fill the table first."
            )
        return max(versions)

    def mark(self, version: int) -> FileMark:
        """The mark of the commit's file, or of its remaining checkpoint. Raises FeedGoneError."""
        mark = self.files.mark(commit_name(version))
        if mark is not None:
            return mark
        names = sorted(self.files.names())
        checkpoint = f"{version:020d}.checkpoint"
        for name in (each for each in names if each.startswith(checkpoint)):
            mark = self.files.mark(f"{LOG_FOLDER}/{name}")
            if mark is not None:
                return mark
        oldest = min(logged_versions(names), default="none")
        raise FeedGoneError(
            f"Commit {version} of {self.location} is not in its log; the oldest there is {oldest}. "
            "Read a snapshot instead."
        )

    def _file_micros(self, version: int, mark: FileMark) -> int:
        """The file's time, moved up where needed to be later than those of earlier commits."""
        best = mark.micros
        for earlier in range(version - 1, max(version - MAX_STEPS, -1), -1):
            before = self.files.mark(commit_name(earlier))
            moved = before.micros + (version - earlier) * MILLISECOND if before else 0
            if moved <= best:
                break
            best = moved
        return best


def commit_name(version: int) -> str:
    """The commit's file, relative to the table's folder."""
    return f"{LOG_FOLDER}/{version:020d}.json"


def logged_versions(names: Iterable[str]) -> set[int]:
    """The versions that a listing of the log folder shows, as commits or as checkpoints."""
    return {int(match[1]) for match in map(COMMIT_NAME.match, names) if match}
