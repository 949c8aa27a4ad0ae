"""The one place where the services of a deployment are put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from iscp_dagster.batchstates.factory import make_opener
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.events.ids import DEFAULT_IDS, IdScheme
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.serviceconsumers.runtime_client import open_runtime
from iscp_dagster.sync.bounds import IterationBounds
from iscp_dagster.sync.deployment import Deployment


def wire_deployment(
    *,
    shards: Sequence[ClickHouseEndpoint],
    log: SqlLog,
    log_url: str,
    state_store: str,
    tolerate_state_mismatch: bool,
    shared: Callable[[], Any],
    private: Callable[[], Any],
    lake: str,
    bounds: IterationBounds,
    event_ids: IdScheme = DEFAULT_IDS,
    invocations: tuple[str, str] = ("", ""),
) -> Deployment:
    """The deployment made of these ClickHouse servers by shard, log, lake and Spark session makers.

    `invocations` are the address and the token of the runtime of invocations; empty: there is none.
    Cheap: nothing connects before it is used. Raises ConfigError for an unknown state store.
    """
    return Deployment(
        endpoint=shards[0],
        shards=tuple(shards),
        log=log,
        open_state_store=make_opener(state_store, log_url=log_url, endpoint=shards[0]),
        tolerate_state_mismatch=tolerate_state_mismatch,
        spark=shared,
        private_spark=private,
        lake=lake,
        bounds=bounds,
        event_ids=event_ids,
        open_runtime=partial(open_runtime, *invocations) if invocations[0] else None,
    )
