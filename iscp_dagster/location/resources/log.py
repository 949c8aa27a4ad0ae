"""Where the ISCP log is kept."""

from __future__ import annotations

from functools import lru_cache

from dagster import ConfigurableResource
from pydantic import Field

from iscp_dagster.joblog.sql.log import SqlLog


class IscpLog(ConfigurableResource[SqlLog]):
    """The ISCP log in a SQL database: SQLite for one machine, PostgreSQL in production."""

    url: str = Field(description="A SQLAlchemy URL: sqlite:///file, postgresql+psycopg://...")

    def open(self) -> SqlLog:
        """The log, made ready at first use in the process."""
        return _opened(self.url)


@lru_cache(maxsize=4)
def _opened(url: str) -> SqlLog:
    log = SqlLog(url, who="dagster")
    log.ensure()
    return log
