"""The executor of the location's runs: one process, and only runs that name a tenant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dagster as dg

from iscp_dagster.location.internals import ASSET_PARTITION_RANGE_START_TAG, PARTITION_NAME_TAG


def format_no_tenant_message(assets: str) -> str:
    """The message for a run of assets that names no tenant."""
    return (
        f"The run names no tenant of {assets}. Choose a partition when you materialize, or give "
        f"the run the tag {PARTITION_NAME_TAG}: <tenant>."
    )


class PartitionGuardExecutor(dg.Executor):
    """Executes like `inner`, but a run of partitioned assets without a partition fails at once.

    Dagster would fail before the step's own code could say what is missing.
    """

    def __init__(self, inner: dg.Executor) -> None:
        self._inner = inner

    @property
    def retries(self) -> Any:
        return self._inner.retries

    @property
    def step_dependency_config(self) -> Any:
        return self._inner.step_dependency_config

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dg.DagsterEvent]:
        if unassigned := _find_unassigned_assets(plan_context):
            raise dg.Failure(format_no_tenant_message(", ".join(unassigned)), allow_retries=False)
        yield from self._inner.execute(plan_context, execution_plan)


def _find_unassigned_assets(context: Any) -> list[str]:
    """The run's partitioned assets, if the run has no partition."""
    if {PARTITION_NAME_TAG, ASSET_PARTITION_RANGE_START_TAG} & set(context.dagster_run.tags):
        return []
    layer = context.job.get_definition().asset_layer
    keys = sorted(layer.selected_asset_keys, key=str)
    return [key.to_user_string() for key in keys if layer.get(key).partitions_def is not None]


def _create_executor(context: dg.InitExecutorContext) -> dg.Executor:
    make = dg.in_process_executor.executor_creation_fn
    assert make is not None
    return PartitionGuardExecutor(make(context))


# One process per run: a run is one step, and a second process takes two seconds.
guarded_executor = dg.ExecutorDefinition(
    name=dg.in_process_executor.name,
    config_schema=dg.in_process_executor.config_schema.as_field(),
    executor_creation_fn=_create_executor,
)
