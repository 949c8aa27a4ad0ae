"""The consumer of a service consumer's job: each chunk of changes is one invocation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from iscp_dagster.model.consumers.protocol import DataRetriever, DataType
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import ConfigError, IscpError, UnavailableError
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.serviceconsumers.chunks import (
    CHANGE,
    Chunk,
    JobIdentity,
    TenantRange,
    cut_chunks,
)
from iscp_dagster.serviceconsumers.invoking import StallTimer, TenantInvoker
from iscp_dagster.serviceconsumers.rows import LineFormatter
from iscp_dagster.serviceconsumers.runtime_protocol import InvocationRuntime
from iscp_dagster.serviceconsumers.sorting import Sorter

TENANTS = 8
"""How many tenants have invocations at a time."""
ClaimErrorFinder = Callable[[str], IscpError | None]
"""Why the run no longer holds a tenant's job; None: it does."""


@dataclass(frozen=True, kw_only=True)
class InvokingConsumer:
    """Invokes a handler with the changes of its tenants, see `model.consumers.Consumer`.

    A replay makes the same chunks under the same keys, and so attaches to existing invocations.
    A tenant whose handler fails stops only itself.
    """

    source: SourceTable
    declared: ServiceConsumer
    table_id: str
    generation: int
    runtime: InvocationRuntime
    find_claim_error: ClaimErrorFinder
    repairs: Mapping[str, int] = field(default_factory=dict)
    """By tenant, how often its job was repaired since its range began."""
    monotonic: Callable[[], float] = time.monotonic

    @classmethod
    def from_info(
        cls,
        source: SourceTable,
        info: ConsumerInfo,
        *,
        table_id: str,
        open_runtime: Callable[[], InvocationRuntime] | None,
        find_claim_error: ClaimErrorFinder,
        columns: Sequence[str],
        repairs: Mapping[str, int],
    ) -> InvokingConsumer:
        """The consumer of a job, which gets `columns`. Raises ConfigError."""
        if open_runtime is None:
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
            declared=source.get_service(info.job),
            table_id=table_id,
            generation=info.generation,
            runtime=open_runtime(),
            find_claim_error=find_claim_error,
            repairs=repairs,
        )

    def consume(self, retriever: DataRetriever) -> None:
        """Read everything, then invoke, tenant by tenant; a tenant that fails is refused."""
        source, name = self.source, f"Job {self.source.name}/{self.declared.name}"
        lines = LineFormatter(name=name, keys=source.keys, tenant=source.tenant)
        with closing(Sorter()) as sorter:
            lines.collect(retriever, sorter)
            tenants = sorted(retriever.tenants - retriever.refused.keys())
            stall_timer = StallTimer(self.declared.patience, self.monotonic)
            call = _Consumption(
                consumer=self, retriever=retriever, sorter=sorter, stall_timer=stall_timer
            )
            with ThreadPoolExecutor(TENANTS, f"invoking {self.declared.name}") as pool:
                errors = list(pool.map(call.invoke_tenant, tenants))
        for tenant, error in zip(tenants, errors, strict=True):
            if error is not None:
                retriever.refuse(tenant, error)


@dataclass(kw_only=True)
class _Consumption:
    """One call of `consume`, once everything is read."""

    consumer: InvokingConsumer
    retriever: DataRetriever
    sorter: Sorter
    stall_timer: StallTimer
    down: UnavailableError | None = None
    """Set once the runtime does not answer, so that no other tenant waits for it."""

    def invoke_tenant(self, tenant: str) -> IscpError | None:
        """Invoke the tenant's chunks to their ends; returns the error of the first without one."""
        if self.down is not None:
            return self.down
        invoking = self._make_invoker(tenant)
        try:
            invoking.invoke(self._cut_chunks(tenant))
        except UnavailableError as error:
            self.down = error
            return error
        except IscpError as error:
            return error
        finally:
            self.retriever.report(tenant, invoking.facts)
        return None

    def _make_invoker(self, tenant: str) -> TenantInvoker:
        consumer = self.consumer
        job_identity = JobIdentity(
            table_id=consumer.table_id,
            job=consumer.declared.name,
            registration=self.retriever.registrations[tenant],
            generation=consumer.generation,
        )
        return TenantInvoker(
            declared=consumer.declared,
            runtime=consumer.runtime,
            tenant=tenant,
            job_identity=job_identity,
            find_claim_error=partial(consumer.find_claim_error, tenant),
            stall_timer=self.stall_timer,
            keys=consumer.source.keys,
            repairs=consumer.repairs.get(tenant, 0),
        )

    def _cut_chunks(self, tenant: str) -> Iterator[Chunk]:
        retriever = self.retriever
        changes = TenantRange(
            table=self.consumer.source.name,
            tenant=tenant,
            from_=retriever.range.from_.version,
            to=retriever.range.to.version,
            snapshot=retriever.data_type is DataType.SNAPSHOT,
        )
        return cut_chunks(
            changes, self.sorter.read_sorted(tenant), rows=self.consumer.declared.rows
        )
