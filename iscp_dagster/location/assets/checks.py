"""`verify` as an asset check of every index, tenant by tenant."""

import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from iscp_dagster.location.assets.backfills import taken
from iscp_dagster.location.internals import Target
from iscp_dagster.location.names import index_key, partitions_of, verify_op_name
from iscp_dagster.location.working import working
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.upkeep.verify import Failure, Verdict, compare_indexes

CHECK = "agrees_with_source"


def index_checks(source: SourceTable) -> dg.AssetChecksDefinition:
    """One check per index: every tenant's keys and values are those of the source."""
    by_key = {index_key(source, index): index for index in source.indexes}

    @dg.multi_asset_check(
        name=verify_op_name(source),
        specs=[_spec(source, index) for index in source.indexes],
        can_subset=True,
        required_resource_keys={"iscp"},
    )
    def verify_indexes(
        context: dg.AssetCheckExecutionContext,
    ) -> Iterator[dg.Output[Any] | dg.AssetCheckEvaluation]:
        deployment: Deployment = context.resources.iscp.deployment()
        tenants = _tenants(context, source)
        selected = context.op_execution_context.selected_asset_check_keys
        for check in sorted(selected, key=str):
            index = by_key[check.asset_key]
            with working(deployment, context.run):
                found = compare_indexes(
                    deployment, source, tenants=tenants or None, indexes=[index.name]
                )
            yield dg.Output(None, output_name=_spec(source, index).get_python_identifier())
            yield from _evaluations(context.instance, check.asset_key, tenants, found)

    return verify_indexes


def _tenants(context: dg.AssetCheckExecutionContext, source: SourceTable) -> Sequence[str]:
    """The partitions that the run is for; empty for a run without, which is for all tenants."""
    asked = context.op_execution_context
    if not (asked.has_partition_key or asked.has_partition_key_range):
        return []
    return sorted(
        {*asked.partition_keys, *taken(context.instance, asked.run, partitions_of(source))}
    )


def _spec(source: SourceTable, index: Index) -> dg.AssetCheckSpec:
    with warnings.catch_warnings():
        # Without partitions, one materialization makes all tenants look unchecked.
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return dg.AssetCheckSpec(
            CHECK,
            asset=index_key(source, index),
            partitions_def=partitions_of(source),
            description=(
                "Compares the tenant with the source VERSION AS OF its watermark: "
                "same keys, same values."
            ),
        )


def _evaluations(
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    tenants: Sequence[str],
    found: Sequence[Verdict | Failure],
) -> Iterator[dg.AssetCheckEvaluation]:
    """One evaluation per tenant: Dagster could not tell which tenant a single one is for."""
    verdicts: dict[str, list[Verdict]] = defaultdict(list)
    failures: dict[str, Failure] = {}
    for each in found:
        if isinstance(each, Verdict):
            verdicts[each.tenant].append(each)
        else:
            failures |= dict.fromkeys(each.tenants, each)
    for tenant in sorted({*verdicts, *failures, *tenants}):
        of_tenant = verdicts[tenant]
        wrong = [verdict for verdict in of_tenant if not verdict.agrees]
        table = {"verdicts": dg.MetadataValue.table([_record(v) for v in wrong])} if wrong else {}
        known = of_tenant or tenant in failures
        yield dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=CHECK,
            partition=tenant,
            passed=bool(of_tenant) and not wrong and tenant not in failures,
            severity=dg.AssetCheckSeverity.ERROR if known else dg.AssetCheckSeverity.WARN,
            description=_described(failures.get(tenant), known=bool(known)),
            target_materialization_data=_materialized(instance, key, tenant),
            blocking=False,
            metadata={
                "rows": sum(verdict.rows for verdict in of_tenant),
                **table,
            },
        )


def _described(failure: Failure | None, *, known: bool) -> str | None:
    if failure is not None:
        return f"Could not be compared: {failure}"
    return None if known else "Nothing of this tenant is built yet."


def _materialized(instance: dg.DagsterInstance, key: dg.AssetKey, tenant: str) -> Target | None:
    """The materialization that was checked: the tenant's latest."""
    wanted = dg.AssetRecordsFilter(key, asset_partitions=[tenant])
    for record in instance.fetch_materializations(wanted, limit=1).records:
        return Target(
            run_id=record.event_log_entry.run_id,
            storage_id=record.storage_id,
            timestamp=record.timestamp,
        )
    return None


def _record(verdict: Verdict) -> dg.TableRecord:
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
