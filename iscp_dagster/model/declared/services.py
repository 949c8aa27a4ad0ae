"""A declared service consumer: a handler of a service that is invoked with a table's changes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

from durable_invocations.addresses import mask_secrets, parse_http_address
from iscp_dagster.model.declared.names import check_identifier
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.specs import check_priority

SERVICE = "service"
"""The consumer type of a service consumer's job."""
_HANDLER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*/[A-Za-z_][A-Za-z0-9_.-]*")
_LONGEST = 2**31


@dataclass(frozen=True)
class ServiceConsumer:
    """Invokes a handler with each batch of a source table's changes, durably."""

    url: str
    """The service endpoint that serves the handler, http or https."""
    _: KW_ONLY
    handler: str
    """`Service/handler`; of a virtual object, the tenant is the key."""
    on: Any = None
    """The `SourceTable`; left out in a table's own `services=[...]`."""
    name: str = ""
    """The job's name; empty: from the handler, `orders_on_changes` for `Orders/on_changes`."""
    columns: Sequence[str] = ()
    """The columns that it gets; tenant and key are always included. Empty: all."""
    rows: int = 1_000
    """The most rows of one invocation."""
    at_once: int = 1
    """How many chunks of one tenant are invoked at a time; 1: one after the other, in order."""
    patience: float = 60.0
    """The seconds that an iteration waits for an invocation before it is retried later."""
    priority: int = 0
    """Higher runs first."""
    description: str | None = None
    owners: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    auto_register: bool = True
    """Register a job automatically for every tenant that is found."""
    kind: ClassVar[str] = SERVICE
    placement: ClassVar[None] = None
    """Its job never belongs to a shard: it keeps no table."""

    def __post_init__(self) -> None:
        if not isinstance(self.handler, str) or not _HANDLER.fullmatch(self.handler):
            which = self.name or mask_secrets(self.url)
            raise ConfigError(
                f"Service consumer {which!r}: handler={self.handler!r} does not name a service and "
                "its handler; write one such as 'Orders/on_changes'."
            )
        if not self.name:
            object.__setattr__(self, "name", re.sub(r"[^A-Za-z0-9_]", "_", self.handler).lower())
        check_identifier(self.name, "service consumer")
        self._check_url()
        self._check_columns()
        self._check_numbers()

    @property
    def shown(self) -> str:
        """Its name for users."""
        return self.name

    @property
    def service(self) -> str:
        """The name of the service."""
        return self.handler.partition("/")[0]

    @property
    def method(self) -> str:
        """The name of the handler within its service."""
        return self.handler.partition("/")[2]

    @property
    def definition(self) -> dict[str, Any]:
        """What determines what it is invoked with, as JSON."""
        return {"handler": self.handler, "columns": sorted(self.columns), "rows": self.rows}

    def _check_url(self) -> None:
        parts = parse_http_address(self.url)
        if parts is None or re.search("[@?#]", self.url):
            self._refuse(
                f"url={mask_secrets(self.url)!r} is not a plain http or https address; write one "
                "such as http://127.0.0.1:9080, without a user, a query or a fragment"
            )
        object.__setattr__(self, "url", self.url.rstrip("/"))

    def _check_columns(self) -> None:
        is_list = isinstance(self.columns, list | tuple)
        if not is_list or not all(isinstance(name, str) for name in self.columns):
            self._refuse(
                f"columns={self.columns!r} is not a list of names; write columns=[{self.columns!r}]"
            )
        object.__setattr__(self, "columns", tuple(self.columns))

    def _check_numbers(self) -> None:
        for option in ("rows", "at_once"):
            value = getattr(self, option)
            if type(value) is not int or not 0 < value < _LONGEST:
                self._refuse(f"{option}={value!r} is not a whole number from 1 on")
        value = self.patience
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            self._refuse(f"patience={value!r} is not a number of seconds above 0")
        try:
            check_priority(self.priority)
        except ConfigError as error:
            raise ConfigError(f"Service consumer {self.name!r}: {error}") from error

    def _refuse(self, why: str) -> None:
        raise ConfigError(f"Service consumer {self.name!r}: {why}.")
