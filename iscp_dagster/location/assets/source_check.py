"""Whether a source table can be followed, as an asset check; `iscp_news` reports it too."""

from collections.abc import Sequence

import dagster as dg

from iscp_dagster.location.names import get_source_asset_key
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.planning.problems import Problem
from iscp_dagster.planning.table_problems import find_problems
from iscp_dagster.sync.deployment import Deployment

CHECK = "can_be_followed"


def build_source_check(source: SourceTable) -> dg.AssetChecksDefinition:
    """A check that fails if the table is missing or unreadable, or has rows without a tenant."""

    @dg.asset_check(
        asset=get_source_asset_key(source),
        name=CHECK,
        description=(
            "The table exists and can be read, and each of its rows has a tenant. The sensor "
            "iscp_news reports it when that changes."
        ),
        required_resource_keys={"iscp"},
    )
    def can_be_followed(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        deployment: Deployment = context.resources.iscp.create_deployment()
        problems = find_problems(deployment, source)
        return dg.AssetCheckResult(
            passed=not problems,
            severity=_get_severity(problems),
            description=_describe_problems(problems),
            metadata=_collect_facts(problems),
        )

    return can_be_followed


def build_check_evaluation(
    source: SourceTable, problems: Sequence[Problem]
) -> dg.AssetCheckEvaluation:
    """The check's result for these problems."""
    return dg.AssetCheckEvaluation(
        asset_key=get_source_asset_key(source),
        check_name=CHECK,
        passed=not problems,
        severity=_get_severity(problems),
        description=_describe_problems(problems),
        metadata=_collect_facts(problems),
    )


def _get_severity(problems: Sequence[Problem]) -> dg.AssetCheckSeverity:
    severe = any(problem.severe for problem in problems)
    return dg.AssetCheckSeverity.ERROR if severe else dg.AssetCheckSeverity.WARN


def _describe_problems(problems: Sequence[Problem]) -> str | None:
    return "\n".join(problem.message for problem in problems) or None


def _collect_facts(problems: Sequence[Problem]) -> dict[str, int]:
    return {name: number for problem in problems for name, number in problem.facts.items()}
