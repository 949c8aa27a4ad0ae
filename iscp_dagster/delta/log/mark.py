"""The mark that a sensor keeps of a table between two looks: a short text in its cursor."""

from __future__ import annotations

from dataclasses import dataclass

from iscp_dagster.model.digest import compute_digest
from iscp_dagster.model.moment import Moment

SEPARATOR = "~"


@dataclass(frozen=True)
class LogMark:
    """The latest commit seen. Two equal marks mean that nothing happened in between.

    `table` is a digest of the table's id: a different one means that the table was dropped and
    recreated, and its jobs must be registered again. `identity` distinguishes the commit's file
    from another of the same name.
    """

    moment: Moment
    table: str
    identity: str

    def __str__(self) -> str:
        return SEPARATOR.join((str(self.moment), self.table, self.identity))

    def is_same_table(self, other: LogMark) -> bool:
        return self.table == other.table

    @staticmethod
    def hash_table_id(table_id: str) -> str:
        """A digest, not a prefix: ids that begin with the time share a prefix within a minute."""
        return compute_digest(table_id)

    @classmethod
    def parse(cls, text: str) -> LogMark:
        """Read what `str` wrote. Raises ValueError on anything else."""
        moment, table, identity = text.split(SEPARATOR)
        return cls(Moment.parse(moment), table, identity)
