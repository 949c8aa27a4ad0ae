"""`verify` as an asset check of every index."""

from collections.abc import Iterator, Sequence

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetKey,
    MetadataValue,
    TableRecord,
    multi_asset_check,
)
from dagster._core.storage.tags import PARTITION_NAME_TAG

from iscp_dagster.core.tables import Index, SourceTable
from iscp_dagster.engine.context import Engine
from iscp_dagster.engine.verify import Verdict, verify
from iscp_dagster.location.names import index_key
from iscp_dagster.location.working import working

CHECK = "agrees_with_source"


def index_checks(source: SourceTable) -> AssetChecksDefinition:
    """One check an index: every tenant's keys and values are those of the source."""
    by_key = {index_key(source, index): index for index in source.indexes}

    @multi_asset_check(
        name=f"verify_{source.database}_{source.table}",
        specs=[_spec(source, index) for index in source.indexes],
        can_subset=True,
        required_resource_keys={"iscp"},
    )
    def verify_indexes(context: AssetCheckExecutionContext) -> Iterator[AssetCheckResult]:
        engine: Engine = context.resources.iscp.engine()
        selected = context.op_execution_context.selected_asset_check_keys
        for check in sorted(selected, key=str):
            name = by_key[check.asset_key].name
            with working(engine, context.run):
                verdicts = verify(engine, source, tenant=_tenant(context), indexes=[name])
            yield _result(check.asset_key, verdicts)

    return verify_indexes


def _tenant(context: AssetCheckExecutionContext) -> str | None:
    """The one partition that the check's run materialized; None, all, when it runs alone."""
    return context.run.tags.get(PARTITION_NAME_TAG)


def _spec(source: SourceTable, index: Index) -> AssetCheckSpec:
    return AssetCheckSpec(
        CHECK,
        asset=index_key(source, index),
        description=(
            "Compares every tenant with the source VERSION AS OF the tenant's watermark: "
            "same keys, same values."
        ),
    )


def _result(key: AssetKey, verdicts: Sequence[Verdict]) -> AssetCheckResult:
    wrong = [verdict for verdict in verdicts if not verdict.agrees]
    return AssetCheckResult(
        asset_key=key,
        check_name=CHECK,
        passed=not wrong,
        severity=AssetCheckSeverity.ERROR,
        metadata={
            "tenants": len(verdicts),
            "rows": sum(verdict.rows for verdict in verdicts),
            "wrong_tenants": len(wrong),
            **({"verdicts": MetadataValue.table([_record(v) for v in wrong])} if wrong else {}),
        },
    )


def _record(verdict: Verdict) -> TableRecord:
    return TableRecord(
        {
            "tenant": verdict.tenant,
            "version": verdict.version,
            "missing": verdict.missing,
            "extra": verdict.extra,
            "different": verdict.different,
            "dead": verdict.dead,
            "samples": "; ".join(verdict.samples),
        }
    )
