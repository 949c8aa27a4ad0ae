"""What every state store offers, wherever it keeps its states."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from iscp_dagster.model.batch import BatchRecord
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.jobs import check_tenant
from iscp_dagster.model.specs import check_printable_name


@dataclass(frozen=True, kw_only=True, order=True)
class StateKey:
    """Whose batch a state describes: an index of a tenant, under one registration of the job."""

    tenant: str
    table_id: str
    job_name: str
    registration: int

    def __post_init__(self) -> None:
        check_tenant(self.tenant)
        check_printable_name("table id", self.table_id)
        check_printable_name("job name", self.job_name)

    def __str__(self) -> str:
        return (
            f"{self.job_name!r} (registration {self.registration}) of tenant {self.tenant!r} "
            f"on table {self.table_id}"
        )


@dataclass(frozen=True, kw_only=True)
class StoredState:
    """What a store holds for a key: the batch, the fence, and the run that wrote it.

    The first write of a key has fence 1; each further one adds 1.
    """

    record: BatchRecord
    fence: int
    holder: str


@dataclass(frozen=True, kw_only=True)
class StateWrite:
    """A record that replaces what `holder` has seen, `expected` (None: nothing)."""

    key: StateKey
    record: BatchRecord
    holder: str
    expected: StoredState | None

    def __post_init__(self) -> None:
        check_printable_name("holder", self.holder)

    @property
    def new_state(self) -> StoredState:
        """What the store holds once this is written."""
        fence = 1 if self.expected is None else self.expected.fence + 1
        return StoredState(record=self.record, fence=fence, holder=self.holder)


Outcomes = Mapping[StateKey, StoredState | FenceError]
"""The outcome of each write: what is held now, or an error that names the other holder."""


class StateStore(Protocol):
    """The one place that keeps batch states. Every write is a compare-and-set.

    Safe to call from several threads and processes. A store that does not answer raises
    UnavailableError; the write may or may not have happened; repeating the call settles it.
    """

    def ensure(self) -> None:
        """Make the store ready to use. Idempotent, and safe from several processes at once."""

    def read(self, keys: Collection[StateKey]) -> Mapping[StateKey, StoredState]:
        """The states of the keys that have been written, in a few round trips."""
        ...

    def write_many(self, writes: Collection[StateWrite]) -> Outcomes:
        """Replace what each write's holder has seen; each key once.

        Keys are independent: one that is not as seen has a FenceError as its outcome and is not
        changed; the others are written. A write that is repeated after its answer was lost has
        the outcome of the first attempt, unless another write came after it. Raises ConfigError,
        before anything is written, for a repeated key or a layout that is not JSON.
        """
        ...

    def write(
        self, key: StateKey, record: BatchRecord, *, holder: str, expected: StoredState | None
    ) -> StoredState:
        """`write_many` of one; raises its FenceError."""
        write = StateWrite(key=key, record=record, holder=holder, expected=expected)
        outcome = self.write_many([write])[key]
        if isinstance(outcome, FenceError):
            raise outcome
        return outcome

    def forget(self, keys: Collection[StateKey]) -> int:
        """Delete the keys' states, whatever they are; returns how many. Idempotent.

        A write that has seen a forgotten state gets a FenceError.
        """
        ...
