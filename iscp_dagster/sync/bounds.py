"""How much one iteration takes on, so that a long backlog is worked off in steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import Job


@dataclass(frozen=True, kw_only=True)
class IterationBounds:
    """The most versions, bytes as written in the lake, and rows of one iteration; at least 1 each.

    The limit on rows keeps chunks few enough, even if one task writes them all, that ClickHouse
    still knows their tokens at a replay.
    """

    versions: int = 500
    bytes: int = 2 * 1024**3
    rows: int = 100_000_000

    def __post_init__(self) -> None:
        if min(self.versions, self.bytes, self.rows) < 1:
            message = f"An iteration takes at least one version, byte and row, not {self}."
            raise ConfigError(message)

    def tighten_for_jobs(self, jobs: Iterable[Job]) -> IterationBounds:
        """The bounds of an iteration that the jobs share: these, or lower ones that a job sets."""
        details = [job.spec.detail for job in jobs]
        versions = [detail.max_versions for detail in details if detail.max_versions]
        sizes = [detail.max_bytes for detail in details if detail.max_bytes]
        return replace(
            self,
            versions=min([self.versions, *versions]),
            bytes=min([self.bytes, *sizes]),
        )

    def find_last_version(
        self, after: int, upto: int, written: Iterable[tuple[int, tuple[int, int]]]
    ) -> int:
        """The last version of (after, upto] that one iteration takes; at least the first.

        `written` is (version, (bytes, rows)) of each commit, in order.
        """
        last = min(upto, after + self.versions)
        total = changed = 0
        for version, (size, rows) in written:
            total += size
            changed += rows
            if version > last:
                break
            if total > self.bytes or changed > self.rows:
                return max(version - 1, after + 1)
        return last


DEFAULT_BOUNDS = IterationBounds()
