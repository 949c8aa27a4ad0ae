"""What a sensor remembers of a table between two looks: a short text in its cursor."""

from __future__ import annotations

from dataclasses import dataclass

from iscp_dagster.model.digest import short
from iscp_dagster.model.moment import Moment

SEPARATOR = "~"


@dataclass(frozen=True)
class LogMark:
    """The latest commit seen. Equal marks: nothing happened in between.

    `table` is short for the table's id: another one means that the table was dropped and created
    anew, and its jobs must be registered again. `identity` tells the
    commit's file from another one of the same name.
    """

    moment: Moment
    table: str
    identity: str

    def __str__(self) -> str:
        return SEPARATOR.join((str(self.moment), self.table, self.identity))

    def same_table(self, other: LogMark) -> bool:
        return self.table == other.table

    @staticmethod
    def shortened(table_id: str) -> str:
        """Of the whole id: some begin with the time, so that those of one minute begin alike."""
        return short(table_id)

    @classmethod
    def parse(cls, text: str) -> LogMark:
        """Read what `str` wrote. Raises ValueError on anything else."""
        moment, table, identity = text.split(SEPARATOR)
        return cls(Moment.parse(moment), table, identity)
