"""The runner's sensor when a person tests it in Dagster's UI: shows what a look would dispatch.

It changes nothing: the look works on a copy of the ISCP log. Runs that the person launches from
the result count as started by hand, since the log knows no dispatch for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory

import dagster as dg

from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.location.names import partitions_name
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.planning.look import Dispatch, Look
from iscp_dagster.planning.runner import Runner
from iscp_dagster.runs.named import DISPATCH_TAG
from iscp_dagster.sync.deployment import Deployment

_NO_TICK = re.compile(r"\d{8}_\d{6}")


def is_trial(context: dg.SensorEvaluationContext) -> bool:
    """Whether the evaluation is a test by a person, not a tick of Dagster's daemon.

    A tick's log key ends in the tick's id; without a tick Dagster puts the time there.
    """
    key = context.log_key or ()
    return bool(key) and _NO_TICK.fullmatch(key[-1]) is not None


def trial_look(deployment: Deployment, sources: Sequence[SourceTable], cursor: str | None) -> Look:
    """What the runner would find now; reads only."""
    with TemporaryDirectory() as folder:
        log = SqlLog(f"sqlite:///{folder}/log.sqlite", clock=deployment.clock)
        log.ensure()
        log.fill(deployment.log.jobs(include_dropped=True), deployment.log.standing())
        return Runner(replace(deployment, log=log), sources).look(cursor)


def by_hand(request: dg.RunRequest) -> dg.RunRequest:
    """The same request without its dispatch tag, which names a dispatch that no log knows."""
    tags = {name: value for name, value in request.tags.items() if name != DISPATCH_TAG}
    return dg.RunRequest(
        job_name=request.job_name,
        partition_key=request.partition_key,
        asset_selection=request.asset_selection,
        asset_check_keys=request.asset_check_keys,
        tags=tags,
    )


def missing_partitions(
    instance: dg.DagsterInstance, dispatches: Sequence[Dispatch]
) -> Iterator[dg.AddDynamicPartitionsRequest]:
    """Requests for the partitions that a tick would have added before its runs."""
    wanted: dict[str, set[str]] = {}
    for each in dispatches:
        if each.source.tenant is not None:
            wanted.setdefault(partitions_name(each.source), set()).update(each.iteration.tenants)
    for name, tenants in wanted.items():
        if missing := tenants - set(instance.get_dynamic_partitions(name)):
            yield dg.AddDynamicPartitionsRequest(name, sorted(missing))
