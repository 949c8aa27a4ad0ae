"""Reports to Dagster what the runner saw: changed tenants' data versions, and tables' checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import dagster as dg

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.location.assets.data_versions import AssetEvent, version_event
from iscp_dagster.location.assets.metadata import facts_if_known
from iscp_dagster.location.assets.source_check import evaluation
from iscp_dagster.location.names import NEWS
from iscp_dagster.location.sensor.runner import Lookout
from iscp_dagster.location.sensor.trial import is_trial
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.planning.reporter import News, Report

NOTHING = "There is nothing new to report."
TRIAL = "A tick would report {count} changes."


def news_sensor(lookout: Lookout) -> dg.SensorDefinition:
    """The sensor that reports changed tenants and the problems of tables.

    Dagster's daemon stores a tick's events one by one, some 10 ms each, before it submits the
    tick's runs: so the events come from a sensor that submits no runs.
    """

    @dg.sensor(
        name=NEWS,
        minimum_interval_seconds=max(1, int(2 * lookout.scan_seconds)),
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys={"iscp"},
        description="Reports changed tenants and problems of the source tables; requests no runs.",
    )
    def iscp_news(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        with lookout.reporter(context) as reporter:
            report = reporter.report(context.cursor)
            changed = list(events(report.news, reporter.runner.delta_log_of))
        told = [*changed, *verdicts(report, lookout.sources)]
        if is_trial(context):
            return dg.SensorResult(skip_reason=TRIAL.format(count=len(told)), cursor=context.cursor)
        return dg.SensorResult(
            skip_reason=None if told else NOTHING, cursor=report.cursor, asset_events=told
        )

    return iscp_news


def events(
    news: Sequence[News], delta_log_of: Callable[[SourceTable], DeltaLog]
) -> Iterator[AssetEvent]:
    """A new data version for every changed tenant, so that its indexes show as behind."""
    for each in news:
        facts = facts_if_known(delta_log_of(each.source)) if each.versions else {}
        for tenant, version in each.versions.items():
            yield version_event(each.source, tenant, version, facts)


def verdicts(report: Report, sources: Sequence[SourceTable]) -> Iterator[dg.AssetCheckEvaluation]:
    """The check results of tables whose problems appeared, changed or ended: reported once.

    If a table's news are materializations, the check is reported again with each, or Dagster would
    show the latest one as never checked.
    """
    again = {each.source.name for each in report.news if each.versions and each.source.load}
    for source in sources:
        if source.name in report.risen | report.settled | again:
            yield evaluation(source, report.of(source.name))
