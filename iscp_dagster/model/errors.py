"""The one tree of errors. A message names the culprit, its value and the remedy."""

from __future__ import annotations

TEMPORARY = range(1, 10_000)
INVOCATION_FAILED = 10_740
"""The code of an invocation's terminal failure, after which a job's batch is replayed."""


class IscpError(Exception):
    """The root of every error this package raises.

    `code` is 0 for success, 1-9999 for a temporary failure (the next iteration retries), 10000
    and above for a permanent one (a person must repair it).
    """

    code = 10_000

    @property
    def permanent(self) -> bool:
        return self.code not in TEMPORARY


class ConfigError(IscpError):
    """A setting or a declaration is wrong; nothing was started or written."""

    code = 10_100


class NoSuchJobError(ConfigError):
    """No job of that name is registered for the tenant."""

    code = 10_110


class SourceError(IscpError):
    """The Delta source cannot be read as declared."""

    code = 10_200


class KeyColumnError(SourceError):
    """A declared key column is missing, null or repeated."""

    code = 10_210


class TableGoneError(SourceError):
    """The table of a job was dropped, or recreated under another id."""

    code = 10_220


class NoTableError(SourceError):
    """There is no Delta table at the source table's declared path; it may come later."""

    code = 10_230


class ReadError(SourceError):
    """Spark failed to read the table, with a condition that this package does not know."""

    code = 10_240


class UntimedError(SourceError):
    """Commits that are next for the job were made before the table had in-commit timestamps."""

    code = 10_250


class SchemaError(IscpError):
    """A source type has no index type, or a declared column does not fit."""

    code = 10_300


class FeedGoneError(SourceError):
    """The change feed of the range cannot be used; a snapshot is read instead."""

    code = 1_200


class UnavailableError(IscpError):
    """A service does not answer; the next iteration tries again."""

    code = 1_100


class UnreadableError(UnavailableError):
    """A data file cannot be read now; the next iteration tries again."""

    code = 1_110


class FenceError(IscpError):
    """Another writer moved the job's row; this one must stop and change nothing."""

    code = 1_300


class RunGoneError(IscpError):
    """A run ended without a result: killed, out of memory, hung, or failed before it began work."""

    code = 1_700


class WaitError(IscpError):
    """A commit is not searchable in every index, or not in time; waiting again may help."""

    code = 1_600

    def __init__(self, message: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.late = late
        """Whether nothing but time is missing."""


class SetupError(IscpError):
    """Something that the machine must provide is missing."""

    code = 10_900


class TransitionError(IscpError):
    """A job's state does not allow the event; the row is unchanged."""

    code = 10_420


class UnrepeatableError(IscpError):
    """A batch was begun and can no longer be read; how much of it was written is unknown."""

    code = 10_450


class BatchError(IscpError):
    """A batch does not fit the record of the one before it; nothing was written."""

    code = 10_410
