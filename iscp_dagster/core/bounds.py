"""How much one iteration takes on: a long backlog is worked off in steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from iscp_dagster.core.errors import ConfigError
from iscp_dagster.core.jobs import Job


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The most versions, and bytes as written in the lake, of one iteration; at least one."""

    versions: int = 500
    bytes: int = 2 * 1024**3

    def __post_init__(self) -> None:
        if self.versions < 1 or self.bytes < 1:
            raise ConfigError(f"An iteration takes at least one version and byte, not {self}.")

    def of(self, jobs: Iterable[Job]) -> Bounds:
        """Those of an iteration that the jobs share: the narrowest that one of them asks for."""
        details = [job.spec.detail for job in jobs]
        versions = [each.max_versions for each in details if each.max_versions]
        sizes = [each.max_bytes for each in details if each.max_bytes]
        return Bounds(
            versions=min(versions, default=self.versions), bytes=min(sizes, default=self.bytes)
        )

    def last(self, after: int, upto: int, written: Iterable[tuple[int, int]]) -> int:
        """The last version of (after, upto] that one iteration takes, the first one always.

        `written` are (version, bytes) of the commits in order.
        """
        last = min(upto, after + self.versions)
        total = 0
        for version, size in written:
            total += size
            if version > last:
                break
            if total > self.bytes:
                return max(version - 1, after + 1)
        return last


DEFAULT_BOUNDS = Bounds()
