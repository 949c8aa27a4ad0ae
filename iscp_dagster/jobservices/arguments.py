"""The arguments of the handlers, as JSON; each has a schema in the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from iscp_dagster.model.declared.tables import DEFAULT_TENANT

SECONDS = 300.0
"""The default timeout of a wait."""
MOST_SECONDS = 3 * 86_400.0
"""The longest timeout: a wait adds two journal entries a minute, and each attempt replays all."""
Timeout = Annotated[float, Field(ge=0, le=MOST_SECONDS)]
"""In seconds."""
_STRICT = ConfigDict(extra="forbid")


class _Argument:
    """Rejects a misspelled field."""

    __pydantic_config__: ClassVar = _STRICT


@dataclass(frozen=True, kw_only=True)
class SpecOfKey(_Argument):
    """How the spec of the key's job differs from its declaration, or from now."""

    spec: Mapping[str, Any] = field(default_factory=dict)
    """As in a file of `iscp job register --file`; fields that are left out keep their values."""


@dataclass(frozen=True, kw_only=True)
class ChangeOfKey(SpecOfKey):
    interrupt: bool = False
    """Whether to end the iteration that is under way."""


@dataclass(frozen=True, kw_only=True)
class VersionOfKey(_Argument):
    """A commit to wait for in the key's index: the table's latest, unless a version is given."""

    version: int | None = None
    timeout: Timeout = SECONDS


@dataclass(frozen=True, kw_only=True)
class JobReference(_Argument):
    """A job: `database.table/job`, of one tenant or of all (`*`)."""

    job: str
    tenant: str = DEFAULT_TENANT


@dataclass(frozen=True, kw_only=True)
class RegisterArgument(SpecOfKey, JobReference):
    """A job, and how its spec differs from its declaration, or from now."""


@dataclass(frozen=True, kw_only=True)
class UpdateArgument(ChangeOfKey, JobReference):
    """A job, how its spec changes, and when that takes effect."""


@dataclass(frozen=True, kw_only=True)
class WaitArgument(VersionOfKey):
    """A commit to wait for: the table's latest, unless a version is given."""

    table: str
    tenant: str | None = None
    """One tenant; else all."""
    index: str | None = None
    """One index, or consumer of a job; else all."""


@dataclass(frozen=True, kw_only=True)
class VerifyArgument(_Argument):
    """Indexes to compare with their sources: all, unless some are named."""

    index: tuple[str, ...] = ()
    """Each `index`, `table/index`, `database.table/index` or `database.table`."""
    tenant: str | None = None
    """One tenant; else all."""
