"""The commits of one table's log: the last one, and when each was made and what it did.

Each commit is read once and kept; call `clear` when the log has been replaced.
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
    _commits: OrderedDict[int, Commit] = field(default_factory=OrderedDict, init=False, repr=False)
    _moments: dict[int, Moment] = field(default_factory=dict, init=False, repr=False)
    """Of the commits in `_commits`."""

    def read_commit(self, version: int) -> Commit | None:
        """What the version did; None when the log no longer holds it."""
        if version not in self._commits:
            content = self.files.read(format_commit_name(version))
            if content is None:
                return None
            self._commits[version] = parse_commit(version, content)
            if len(self._commits) > MAX_COMMITS_HELD:
                evicted, _ = self._commits.popitem(last=False)
                self._moments.pop(evicted, None)
        return self._commits[version]

    def clear(self) -> None:
        self._commits.clear()
        self._moments.clear()

    def get_moment(self, version: int) -> Moment:
        """The commit's moment: its in-commit timestamp, else its file's time, as Delta does.

        Raises FeedGoneError when the log no longer holds the commit.
        """
        if version in self._moments:
            return self._moments[version]
        return self.read_mark_and_moment(version)[1]

    def read_mark_and_moment(self, version: int) -> tuple[FileMark, Moment]:
        """The mark of the commit's file, see `mark`, and the commit's moment."""
        mark, commit = self.read_mark(version), self.read_commit(version)
        stamped = None if commit is None else commit.in_commit_micros
        micros = self._compute_file_micros(version, mark) if stamped is None else stamped
        moment = Moment(version, micros)
        if version in self._commits:
            self._moments[version] = moment
        return mark, moment

    def find_last_version(self, start: int | None = None) -> int:
        """The latest version: steps on from `start`, and lists the log after `MAX_STEPS`.

        Raises NoTableError when there is no log.
        """
        for version in range(start + 1, start + 1 + MAX_STEPS) if start is not None else ():
            if self.files.read_mark(format_commit_name(version)) is None:
                return version - 1
        versions = parse_versions(self.files.list_names())
        if not versions:
            raise NoTableError(
                f"There is no Delta table at {self.location}: it has no {LOG_FOLDER} with commits. "
                "Correct the path of the source table, or create and fill the table first."
            )
        return max(versions)

    def read_mark(self, version: int) -> FileMark:
        """The mark of the commit's file, or of its remaining checkpoint. Raises FeedGoneError."""
        mark = self.files.read_mark(format_commit_name(version))
        if mark is not None:
            return mark
        names = sorted(self.files.list_names())
        checkpoint = f"{version:020d}.checkpoint"
        for name in (name for name in names if name.startswith(checkpoint)):
            mark = self.files.read_mark(f"{LOG_FOLDER}/{name}")
            if mark is not None:
                return mark
        oldest = min(parse_versions(names), default="none")
        raise FeedGoneError(
            f"Commit {version} of {self.location} is not in its log; the oldest there is {oldest}. "
            "Read a snapshot instead."
        )

    def _compute_file_micros(self, version: int, mark: FileMark) -> int:
        """The file's time, moved up where needed to be later than those of earlier commits."""
        micros = mark.micros
        for earlier in range(version - 1, max(version - MAX_STEPS, -1), -1):
            earlier_mark = self.files.read_mark(format_commit_name(earlier))
            least = earlier_mark.micros + (version - earlier) * MILLISECOND if earlier_mark else 0
            if least <= micros:
                break
            micros = least
        return micros


def format_commit_name(version: int) -> str:
    """The commit's file, relative to the table's folder."""
    return f"{LOG_FOLDER}/{version:020d}.json"


def parse_versions(names: Iterable[str]) -> set[int]:
    """The versions that a listing of the log folder shows, as commits or as checkpoints."""
    return {int(match[1]) for match in map(COMMIT_NAME.match, names) if match}
