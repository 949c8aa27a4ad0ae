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
from iscp_dagster.serviceconsumers.chunks import CHANGE, Chunk, Owner, Part, chunks
from iscp_dagster.serviceconsumers.invoking import Invoking, Patience
from iscp_dagster.serviceconsumers.rows import Lines
from iscp_dagster.serviceconsumers.services import Services
from iscp_dagster.serviceconsumers.sorting import Sorter

TENANTS = 8
"""How many tenants are invoked for at a time."""
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
    repairs: Mapping[str, int] = field(default_factory=dict)
    """By tenant, how often its job was repaired since its range began."""
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
        repairs: Mapping[str, int],
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
            repairs=repairs,
        )

    def consume(self, retriever: DataRetriever) -> None:
        """Read everything, then invoke, tenant by tenant; a tenant that fails is refused."""
        source, name = self.source, f"Job {self.source.name}/{self.declared.name}"
        lines = Lines(name=name, keys=source.keys, tenant=source.tenant)
        with closing(Sorter()) as sorter:
            lines.collect(retriever, sorter)
            tenants = sorted(retriever.tenants - retriever.refused.keys())
            patience = Patience(self.declared.patience, self.monotonic)
            its = _Consuming(its=self, retriever=retriever, sorter=sorter, patience=patience)
            with ThreadPoolExecutor(TENANTS, f"invoking {self.declared.name}") as pool:
                ends = list(pool.map(its.end_of, tenants))
        for tenant, error in zip(tenants, ends, strict=True):
            if error is not None:
                retriever.refuse(tenant, error)


@dataclass(kw_only=True)
class _Consuming:
    """One call of `consume`, once everything is read."""

    its: InvokingConsumer
    retriever: DataRetriever
    sorter: Sorter
    patience: Patience
    down: UnavailableError | None = None
    """Why the runtime does not answer, once it did not: no other tenant need wait for it."""

    def end_of(self, tenant: str) -> IscpError | None:
        """Invoke the tenant's chunks to their ends; returns why they do not all have one."""
        if self.down is not None:
            return self.down
        invoking = self._invoking(tenant)
        try:
            invoking.invoke(self._chunks(tenant))
        except UnavailableError as error:
            self.down = error
            return error
        except IscpError as error:
            return error
        finally:
            self.retriever.tell(tenant, invoking.facts)
        return None

    def _invoking(self, tenant: str) -> Invoking:
        its = self.its
        owner = Owner(
            table_id=its.table_id,
            job=its.declared.name,
            registration=self.retriever.registrations[tenant],
            generation=its.generation,
        )
        return Invoking(
            declared=its.declared,
            services=its.services,
            tenant=tenant,
            owner=owner,
            lost=partial(its.lost, tenant),
            patience=self.patience,
            keys=its.source.keys,
            repairs=its.repairs.get(tenant, 0),
        )

    def _chunks(self, tenant: str) -> Iterator[Chunk]:
        retriever = self.retriever
        part = Part(
            table=self.its.source.name,
            tenant=tenant,
            from_=retriever.range.from_.version,
            to=retriever.range.to.version,
            snapshot=retriever.data_type is DataType.SNAPSHOT,
        )
        return chunks(part, self.sorter.sorted(tenant), rows=self.its.declared.rows)
