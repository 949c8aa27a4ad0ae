"""Whether a source table can be followed, as an asset check; `iscp_news` reports it too."""

from collections.abc import Sequence

import dagster as dg

from iscp_dagster.location.names import source_key
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.planning.problems import Problem
from iscp_dagster.planning.table_problems import problems_of
from iscp_dagster.sync.deployment import Deployment

CHECK = "can_be_followed"


def source_check(source: SourceTable) -> dg.AssetChecksDefinition:
    """A check that fails if the table is missing or unreadable, or has rows that no index takes."""

    @dg.asset_check(
        asset=source_key(source),
        name=CHECK,
        description=(
            "The table exists and can be read, and each of its rows has a tenant. The sensor "
            "iscp_news reports it when that changes."
        ),
        required_resource_keys={"iscp"},
    )
    def can_be_followed(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        deployment: Deployment = context.resources.iscp.deployment()
        found = problems_of(deployment, source)
        return dg.AssetCheckResult(
            passed=not found,
            severity=_severity(found),
            description=_description(found),
            metadata=_facts(found),
        )

    return can_be_followed


def evaluation(source: SourceTable, found: Sequence[Problem]) -> dg.AssetCheckEvaluation:
    """The check's outcome for the problems that were found."""
    return dg.AssetCheckEvaluation(
        asset_key=source_key(source),
        check_name=CHECK,
        passed=not found,
        severity=_severity(found),
        description=_description(found),
        metadata=_facts(found),
    )


def _severity(found: Sequence[Problem]) -> dg.AssetCheckSeverity:
    severe = any(each.severe for each in found)
    return dg.AssetCheckSeverity.ERROR if severe else dg.AssetCheckSeverity.WARN


def _description(found: Sequence[Problem]) -> str | None:
    return "\n".join(each.message for each in found) or None


def _facts(found: Sequence[Problem]) -> dict[str, int]:
    return {name: number for each in found for name, number in each.facts.items()}
