"""Reports to Dagster what the runner saw: changed tenants' data versions, and checks of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import dagster as dg

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.location.assets.metadata import try_read_log_facts
from iscp_dagster.location.assets.reports.data_versions import AssetEvent, build_version_event
from iscp_dagster.location.assets.source_check import build_check_evaluation
from iscp_dagster.location.names import NEWS
from iscp_dagster.location.partitions import group_by_partition
from iscp_dagster.location.sensor.preview import is_trial
from iscp_dagster.location.sensor.runner import Lookout
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.planning.reporter import NewsReport, TenantNews

NOTHING = "There is nothing new to report."
TRIAL = "A tick would report {count} changes."


def build_news_sensor(lookout: Lookout) -> dg.SensorDefinition:
    """The sensor that reports changed tenants and the problems of tables.

    Dagster's daemon stores a tick's events one by one, about 10 ms each, before it submits the
    tick's runs: so a sensor without runs reports the events.
    """

    @dg.sensor(
        name=NEWS,
        minimum_interval_seconds=max(1, int(2 * lookout.poll_seconds)),
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys={"iscp"},
        description="Reports changed tenants and problems of the source tables; requests no runs.",
    )
    def iscp_news(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        with lookout.open_reporter(context) as reporter:
            report = reporter.report(context.cursor)
            version_events = list(build_version_events(report.news, reporter.runner.get_delta_log))
        asset_events = [*version_events, *build_check_results(report, lookout.sources)]
        if is_trial(context):
            return dg.SensorResult(
                skip_reason=TRIAL.format(count=len(asset_events)), cursor=context.cursor
            )
        return dg.SensorResult(
            skip_reason=None if asset_events else NOTHING,
            cursor=report.cursor,
            asset_events=asset_events,
        )

    return iscp_news


def build_version_events(
    news: Sequence[TenantNews], delta_log_of: Callable[[SourceTable], DeltaLog]
) -> Iterator[AssetEvent]:
    """A new data version for every changed partition, so that Dagster shows indexes as stale."""
    for table_news in news:
        source, versions = table_news.source, table_news.versions
        facts = try_read_log_facts(delta_log_of(source)) if versions else {}
        for partition, tenants in group_by_partition(source, versions).items():
            version = max(versions[tenant] for tenant in tenants)
            yield build_version_event(source, partition, version, facts)


def build_check_results(
    report: NewsReport, sources: Sequence[SourceTable]
) -> Iterator[dg.AssetCheckEvaluation]:
    """The check results of tables whose problems appeared, changed or ended, once each.

    If a table's news are materializations, its check is reported again, or Dagster would show the
    latest one as never checked.
    """
    rechecked = {
        table_news.source.name
        for table_news in report.news
        if table_news.versions and table_news.source.load
    }
    for source in sources:
        if source.name in report.new_problem_tables | report.resolved_tables | rechecked:
            yield build_check_evaluation(source, report.list_problems(source.name))
