"""The ISCP log: the durable record of jobs, their state and their watermarks."""

from iscp_dagster.log.memory import MemoryLog
from iscp_dagster.log.protocol import JobLog
from iscp_dagster.log.sql import SqlLog

__all__ = ["JobLog", "MemoryLog", "SqlLog"]

_KINDS: tuple[type[JobLog], ...] = (MemoryLog, SqlLog)
