"""`verify` as an asset check of every index, partition by partition."""

import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from iscp_dagster.location.assets.backfills import list_taken_partitions
from iscp_dagster.location.internals import Target
from iscp_dagster.location.names import (
    get_index_asset_key,
    get_verify_op_name,
)
from iscp_dagster.location.partitions import (
    build_partitions_def,
    get_partition,
    group_by_partition,
    list_partition_tenants,
)
from iscp_dagster.location.run_context import hold_run_lease
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.upkeep.verify_indexes import ComparisonFailure, IndexVerdict, compare_indexes

CHECK = "agrees_with_source"
MOST_SHOWN = 100
"""Tenants of a partition whose differences a check shows."""


def build_index_checks(source: SourceTable) -> dg.AssetChecksDefinition:
    """One check per index: every tenant has the keys and values of the source."""
    by_key = {get_index_asset_key(source, index): index for index in source.indexes}

    @dg.multi_asset_check(
        name=get_verify_op_name(source),
        specs=[_build_check_spec(source, index) for index in source.indexes],
        can_subset=True,
        required_resource_keys={"iscp"},
    )
    def verify_indexes(
        context: dg.AssetCheckExecutionContext,
    ) -> Iterator[dg.Output[Any] | dg.AssetCheckEvaluation]:
        deployment: Deployment = context.resources.iscp.create_deployment()
        partitions = _list_run_partitions(context, source)
        tenants = list_partition_tenants(deployment, source, partitions) if partitions else []
        selected = context.op_execution_context.selected_asset_check_keys
        for check in sorted(selected, key=str):
            index = by_key[check.asset_key]
            with hold_run_lease(deployment, context.run):
                results = compare_indexes(
                    deployment, source, tenants=tenants or None, indexes=[index.name]
                )
            yield dg.Output(
                None, output_name=_build_check_spec(source, index).get_python_identifier()
            )
            yield from _build_evaluations(
                context.instance, source, check.asset_key, partitions, results
            )

    return verify_indexes


def _list_run_partitions(
    context: dg.AssetCheckExecutionContext, source: SourceTable
) -> Sequence[str]:
    """The run's partitions; empty for a run without, which checks all tenants."""
    op_context = context.op_execution_context
    if not (op_context.has_partition_key or op_context.has_partition_key_range):
        return []
    return sorted(
        {
            *op_context.partition_keys,
            *list_taken_partitions(context.instance, op_context.run, build_partitions_def(source)),
        }
    )


def _build_check_spec(source: SourceTable, index: Index) -> dg.AssetCheckSpec:
    with warnings.catch_warnings():
        # Without partitions, one materialization makes all tenants look unchecked.
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return dg.AssetCheckSpec(
            CHECK,
            asset=get_index_asset_key(source, index),
            partitions_def=build_partitions_def(source),
            description=(
                "Compares the tenant with the source VERSION AS OF its watermark: "
                "same keys, same values."
            ),
        )


def _build_evaluations(
    instance: dg.DagsterInstance,
    source: SourceTable,
    key: dg.AssetKey,
    partitions: Sequence[str],
    results: Sequence[IndexVerdict | ComparisonFailure],
) -> Iterator[dg.AssetCheckEvaluation]:
    """One evaluation per partition, so that Dagster knows the partition of each."""
    verdicts: dict[str, list[IndexVerdict]] = defaultdict(list)
    failures: dict[str, ComparisonFailure] = {}
    for result in results:
        if isinstance(result, IndexVerdict):
            verdicts[get_partition(source, result.tenant)].append(result)
        else:
            failures |= dict.fromkeys(group_by_partition(source, result.tenants), result)
    for partition in sorted({*verdicts, *failures, *partitions}):
        partition_verdicts = verdicts[partition]
        mismatches = [verdict for verdict in partition_verdicts if not verdict.agrees]
        table = (
            {"verdicts": dg.MetadataValue.table([*map(_to_table_record, mismatches[:MOST_SHOWN])])}
            if mismatches
            else {}
        )
        has_result = partition_verdicts or partition in failures
        yield dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=CHECK,
            partition=partition,
            passed=bool(partition_verdicts) and not mismatches and partition not in failures,
            severity=dg.AssetCheckSeverity.ERROR if has_result else dg.AssetCheckSeverity.WARN,
            description=_describe_result(failures.get(partition), has_result=bool(has_result)),
            target_materialization_data=_find_materialization(instance, key, partition),
            blocking=False,
            metadata={
                "rows": sum(verdict.rows for verdict in partition_verdicts),
                **({"tenants": len(partition_verdicts)} if source.buckets else {}),
                **table,
            },
        )


def _describe_result(failure: ComparisonFailure | None, *, has_result: bool) -> str | None:
    if failure is not None:
        return f"Could not be compared: {failure}"
    return None if has_result else "Nothing of this partition is built yet."


def _find_materialization(
    instance: dg.DagsterInstance, key: dg.AssetKey, partition: str
) -> Target | None:
    """The checked materialization: the partition's latest."""
    records_filter = dg.AssetRecordsFilter(key, asset_partitions=[partition])
    for record in instance.fetch_materializations(records_filter, limit=1).records:
        return Target(
            run_id=record.event_log_entry.run_id,
            storage_id=record.storage_id,
            timestamp=record.timestamp,
        )
    return None


def _to_table_record(verdict: IndexVerdict) -> dg.TableRecord:
    return dg.TableRecord(
        {
            "tenant": verdict.tenant,
            "version": verdict.version,
            "missing": verdict.missing,
            "extra": verdict.extra,
            "different": verdict.different,
            "dead": verdict.dead,
            "logged": verdict.logged,
            "samples": "; ".join(verdict.samples),
        }
    )
