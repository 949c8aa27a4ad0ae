"""The consumer of a service consumer's job: each chunk of changes is one invocation."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count

from iscp_dagster.invocations.client import InvocationFailedError
from iscp_dagster.model.consumers import DataRetriever, DataType
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import ConfigError, IscpError, UnavailableError
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.serviceconsumers.chunks import CHANGE, Chunk, Owner, Part, chunks
from iscp_dagster.serviceconsumers.rows import Lines
from iscp_dagster.serviceconsumers.services import (
    INVOKED,
    PAUSED,
    InvocationGoingError,
    Invoked,
    Services,
)
from iscp_dagster.serviceconsumers.sorting import Sorter

TENANTS = 8
"""How many tenants are invoked for at a time."""
LOOK_SECONDS = 1.0
"""How long one look at an invocation may take; between looks, the fence is asked for."""
SHOWN = 50
"""The invocations of a tenant that an iteration shows; the latest ones."""

Lost = Callable[[str], IscpError | None]
"""Why the run no longer holds a tenant's job; None: it does."""


@dataclass(frozen=True, kw_only=True)
class InvokingConsumer:
    """Invokes a handler with the changes of its tenants, see `model.consumers.Consumer`.

    A replay makes the same chunks under the same keys, and so attaches to the invocations that
    there are. A tenant whose handler fails stops alone.
    """

    source: SourceTable
    declared: ServiceConsumer
    table_id: str
    generation: int
    services: Services
    lost: Lost
    monotonic: Callable[[], float] = time.monotonic

    @classmethod
    def of(
        cls,
        source: SourceTable,
        info: ConsumerInfo,
        *,
        table_id: str,
        services: Callable[[], Services] | None,
        lost: Lost,
        columns: Sequence[str],
    ) -> InvokingConsumer:
        """The consumer of a job, which gets `columns`. Raises ConfigError."""
        if services is None:
            raise ConfigError(
                f"Job {source.name}/{info.job}: no runtime of invocations is named; set "
                "ISCP_INVOCATIONS_URL, or start the stack (`iscp up`)."
            )
        if CHANGE in columns:
            raise ConfigError(
                f"Job {source.name}/{info.job}: the source has a column {CHANGE!r}, a name that "
                "every row of an invocation has; rename it, or leave it out with columns=[...]."
            )
        return cls(
            source=source,
            declared=source.service(info.job),
            table_id=table_id,
            generation=info.generation,
            services=services(),
            lost=lost,
        )

    def consume(self, retriever: DataRetriever) -> None:
        """Read everything, then invoke, tenant by tenant; a tenant that fails is refused."""
        source, name = self.source, f"Job {self.source.name}/{self.declared.name}"
        lines = Lines(name=name, keys=source.keys, tenant=source.tenant)
        with closing(Sorter()) as sorter:
            lines.collect(retriever, sorter)
            tenants = sorted(retriever.tenants - retriever.refused.keys())
            invoking = _Invoking(its=self, retriever=retriever, sorter=sorter)
            with ThreadPoolExecutor(TENANTS, f"invoking {self.declared.name}") as pool:
                ends = list(pool.map(invoking.end_of, tenants))
        for tenant, error in zip(tenants, ends, strict=True):
            if error is not None:
                retriever.refuse(tenant, error)


@dataclass(kw_only=True)
class _Invoking:
    """One call of `consume`, once everything is read."""

    its: InvokingConsumer
    retriever: DataRetriever
    sorter: Sorter
    moved: float = field(init=False)
    """When an invocation last ended well: all wait only as long as others end."""
    down: UnavailableError | None = None
    """Why the runtime does not answer, once it did not: no other tenant need wait for it."""

    def __post_init__(self) -> None:
        self.moved = self.its.monotonic()

    def end_of(self, tenant: str) -> IscpError | None:
        """Invoke the tenant's chunks to their ends; returns why they do not all have one."""
        if self.down is not None:
            return self.down
        try:
            _Tenant(self, tenant).invoke()
        except UnavailableError as error:
            self.down = error
            return error
        except IscpError as error:
            return error
        return None


@dataclass
class _Tenant:
    """The chunks of one tenant."""

    all: _Invoking
    tenant: str
    begun: int = 0
    attached: int = 0
    ended: deque[tuple[Chunk, Invoked]] = field(default_factory=lambda: deque(maxlen=SHOWN))

    def invoke(self) -> None:
        """Raises why not all invocations have ended well."""
        its, waiting = self.all.its, deque[tuple[Chunk, Invoked]]()
        for chunk in self._chunks():
            if len(waiting) >= its.declared.at_once:
                self._end(*waiting.popleft())
            waiting.append((chunk, self._sent(chunk)))
        while waiting:
            self._end(*waiting.popleft())
        self.all.retriever.tell(self.tenant, self._facts())

    def _chunks(self) -> Iterator[Chunk]:
        its, retriever = self.all.its, self.all.retriever
        part = Part(
            table=its.source.name,
            tenant=self.tenant,
            from_=retriever.range.from_.version,
            to=retriever.range.to.version,
            snapshot=retriever.data_type is DataType.SNAPSHOT,
        )
        return chunks(part, self.all.sorter.sorted(self.tenant), rows=its.declared.rows)

    def _sent(self, chunk: Chunk) -> Invoked:
        """The chunk's invocation: the one that there is, unless it failed earlier.

        A job whose handler failed is planned again by a person alone, for whom it is tried anew.
        """
        its = self.all.its
        declared, services = its.declared, its.services
        key = chunk.key(self._owner())
        for attempt in count():
            if (error := its.lost(self.tenant)) is not None:
                raise error
            keyed = services.keyed(declared.url, declared.service, declared.method)
            invoked = services.send(
                declared.service,
                declared.method,
                chunk.body,
                key=self.tenant if keyed else None,
                idempotency_key=f"{key}-{attempt}" if attempt else key,
            )
            if invoked.is_new or not services.look(invoked, 0).failed:
                break
        self.begun += 1
        self.attached += not invoked.is_new
        return invoked

    def _owner(self) -> Owner:
        its = self.all.its
        return Owner(
            table_id=its.table_id,
            job=its.declared.name,
            registration=self.all.retriever.registrations[self.tenant],
            generation=its.generation,
        )

    def _end(self, chunk: Chunk, invoked: Invoked) -> None:
        """Wait for the end. Raises InvocationGoingError, InvocationFailedError, FenceError."""
        its = self.all.its
        while True:
            seen = its.services.look(invoked, min(LOOK_SECONDS, its.declared.patience))
            invoked = replace(seen, is_new=invoked.is_new)
            if invoked.ended or invoked.status == PAUSED:
                break
            if (error := its.lost(self.tenant)) is not None:
                raise error
            if its.monotonic() - self.all.moved > its.declared.patience:
                break
        if not invoked.ended:
            raise InvocationGoingError(self._going(chunk, invoked))
        if invoked.failed:
            raise InvocationFailedError(
                self._failed(chunk, invoked), invocation=invoked.id, reason=invoked.failure
            )
        self.all.moved = its.monotonic()
        self.ended.append((chunk, invoked))

    def _facts(self) -> dict[str, object]:
        """What is shown of the iteration."""
        shown = [
            {
                "chunk": chunk.number,
                "rows": chunk.rows,
                "id": invoked.id,
                "status": "succeeded",
                "attached": not invoked.is_new,
                "link": invoked.link,
            }
            for chunk, invoked in self.ended
        ]
        counts = {"invocations": self.begun, "attached": self.attached}
        return {**counts, **({INVOKED: shown} if shown else {})}

    def _head(self, chunk: Chunk, invoked: Invoked) -> str:
        declared = self.all.its.declared
        part = chunk.part
        return (
            f"Service consumer {declared.name!r}: invocation {invoked.id} of {declared.handler} "
            f"with chunk {chunk.number} of ({part.from_}, {part.to}] ({invoked.link})"
        )

    def _failed(self, chunk: Chunk, invoked: Invoked) -> str:
        return (
            f"{self._head(chunk, invoked)} failed: {invoked.failure}. Correct the handler or what "
            "it met, then repair the job (`iscp job repair`), which invokes it anew."
        )

    def _going(self, chunk: Chunk, invoked: Invoked) -> str:
        last = f", last {invoked.failure}" if invoked.failure else ""
        then = (
            f"resume it (`iscp invocations resume {invoked.id}`)"
            if invoked.status == PAUSED
            else f"it goes on ({self.all.its.declared.patience:g} s are waited for it at a time)"
        )
        return (
            f"{self._head(chunk, invoked)} is {invoked.status}{last}; {then}. The next iteration "
            "attaches to it."
        )
