"""The runner's sensor when a person tests it in Dagster's UI: shows what a look would dispatch.

It changes nothing: the look works on a copy of the ISCP log. Runs that the person launches from
the result count as started by hand, since the log has no dispatch for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory

import dagster as dg

from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.location.names import get_partitions_name
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.planning.look import Dispatch, LookResult
from iscp_dagster.planning.runner import Runner
from iscp_dagster.runs.run_names import DISPATCH_TAG
from iscp_dagster.sync.deployment import Deployment

_NO_TICK = re.compile(r"\d{8}_\d{6}")


def is_trial(context: dg.SensorEvaluationContext) -> bool:
    """Whether the evaluation is a test by a person, not a tick of Dagster's daemon.

    A tick's log key ends in the tick's id, otherwise in the time.
    """
    key = context.log_key or ()
    return bool(key) and _NO_TICK.fullmatch(key[-1]) is not None


def take_trial_look(
    deployment: Deployment, sources: Sequence[SourceTable], cursor: str | None
) -> LookResult:
    """What the runner would find now; reads only."""
    with TemporaryDirectory() as folder:
        log = SqlLog(f"sqlite:///{folder}/log.sqlite", clock=deployment.clock)
        log.ensure()
        log.import_jobs(
            deployment.log.list_jobs(include_dropped=True), deployment.log.list_standing()
        )
        return Runner(replace(deployment, log=log), sources).look(cursor)


def drop_dispatch_tag(request: dg.RunRequest) -> dg.RunRequest:
    """The same request without its dispatch tag, whose dispatch is in no log."""
    tags = {name: value for name, value in request.tags.items() if name != DISPATCH_TAG}
    return dg.RunRequest(
        job_name=request.job_name,
        partition_key=request.partition_key,
        asset_selection=request.asset_selection,
        asset_check_keys=request.asset_check_keys,
        tags=tags,
    )


def build_partition_requests(
    instance: dg.DagsterInstance, dispatches: Sequence[Dispatch]
) -> Iterator[dg.AddDynamicPartitionsRequest]:
    """Requests for the partitions that a tick would have added before its runs."""
    tenants_by_name: dict[str, set[str]] = {}
    for dispatch in dispatches:
        if dispatch.source.tenant is not None and not dispatch.source.buckets:
            tenants_by_name.setdefault(get_partitions_name(dispatch.source), set()).update(
                dispatch.iteration.tenants
            )
    for name, tenants in tenants_by_name.items():
        if missing := tenants - set(instance.get_dynamic_partitions(name)):
            yield dg.AddDynamicPartitionsRequest(name, sorted(missing))
