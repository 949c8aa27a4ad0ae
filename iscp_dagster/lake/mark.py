"""What a sensor remembers of a table between two looks: a short text in its cursor."""

from __future__ import annotations

from dataclasses import dataclass

from iscp_dagster.core.moment import Moment

ID_LENGTH = 8
SEPARATOR = "~"


@dataclass(frozen=True)
class LogMark:
    """The latest commit seen. Equal marks: nothing happened in between.

    `table` begins like the table's id: another one means that the table was dropped and created
    anew, and its jobs must be registered again (seed 001, "TRUNCATE"). `identity` tells the
    commit's file from another one of the same name.
    """

    moment: Moment
    table: str
    identity: str

    def __str__(self) -> str:
        return SEPARATOR.join((str(self.moment), self.table, self.identity))

    def same_table(self, other: LogMark) -> bool:
        return self.table == other.table

    @classmethod
    def parse(cls, text: str) -> LogMark:
        """Read what `str` wrote. Raises ValueError on anything else."""
        moment, table, identity = text.split(SEPARATOR)
        return cls(Moment.parse(moment), table, identity)
