"""Who gets image rows, which claims share a reading of them, and which tables cannot give them."""

import json
from types import SimpleNamespace

import pytest

from iscp_dagster import Changes, Mirror, SourceTable, Trigger, View
from iscp_dagster.clickhouse.kinds.index_kind import resolve_index
from iscp_dagster.delta.log.commits import format_commit_name
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.read_plans import ReadKind, ReadPlan
from iscp_dagster.model.batch import Range
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.declared.linking.attach import attach_to_tables
from iscp_dagster.model.errors import ConfigError, SchemaError, SourceError, UntimedError
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.sync.reading.requests import ReadRequest
from iscp_dagster.sync.reading.views import (
    check_timestamps,
    get_image_source,
    group_by_view,
    list_image_columns,
)
from support.errors import assert_names, raises_naming
from support.jobs.one_table import METADATA, PROTOCOL

TRADES = SourceTable("shop.trades", key="id", tenant="desk", indexes=[Mirror(), Changes()])
BIG = View("big", of=TRADES, where="amount > 100", columns={"gross": "amount * 1.19"})
TRIGGERS = [Trigger("hot", on=BIG, match="gross > 5"), Trigger("cold", on=BIG, match="gross < 2")]
(SOURCE,) = attach_to_tables([TRADES], [BIG], TRIGGERS)
TYPES = {"mirror": "mirror", "changes": "changes", "big": "changes"}


def info(job):
    return ConsumerInfo(type=TYPES.get(job, "trigger"), table="trades", db="shop", job=job)


def test_jobs_of_one_view_share_a_reading():
    claims = [SimpleNamespace(consumer=info(job)) for job in (*TYPES, "hot", "cold", "unknown")]
    groups = [
        ([claim.consumer.job for claim in members], image_source and len(image_source.conditions))
        for image_source, members in group_by_view(SOURCE, claims)
    ]
    # A job that nobody declares fails on its own, once its columns are read.
    assert groups == [(["mirror", "unknown"], None), (["changes"], 0), (["big", "hot", "cold"], 2)]
    with raises_naming(ConfigError, "shop.trades/unknown", "'unknown'"):
        get_image_source(SOURCE, info("unknown"))


def test_columns_of_images_are_those_of_the_view_and_of_the_change():
    def columns(job, *available):
        return list_image_columns(SOURCE, info(job), get_image_source(SOURCE, info(job)), available)

    images = ("_change", "_image", "_fields", "_ordinal")
    assert columns("changes", "id", "desk", "amount") == ("id", "desk", "amount", *images)
    assert columns("big", "id", "desk", "amount")[3:] == ("gross", *images)
    assert columns("hot", "id", "desk")[-2:] == ("_match", "_unmatch")
    with raises_naming(ConfigError, "shop.trades/changes", "'desk'", "id"):
        columns("changes", "id")
    with raises_naming(SchemaError, "shop.trades/changes", "'_fields'"):
        columns("changes", "id", "desk", "_fields")


def test_only_image_rows_read_as_a_snapshot_after_the_first_leave_a_gap():
    tail = ReadPlan(kind=ReadKind.TAIL, reason="changes")
    snapshot = ReadPlan(kind=ReadKind.SNAPSHOT, reason="VACUUM removed files")
    images = get_image_source(SOURCE, info("big"))
    later, first = (Range(from_=at, to=Moment(9)) for at in (Moment(4), START))
    gap = ReadRequest(plan=snapshot, range=later, image_source=images).gap
    assert_names(gap, "5 to 9", "VACUUM removed files")
    assert ReadRequest(plan=tail, range=later, image_source=images).gap == ""
    assert ReadRequest(plan=snapshot, range=first, image_source=images).gap == ""
    assert ReadRequest(plan=snapshot, range=later).gap == ""


@pytest.fixture
def log(tmp_path):
    (tmp_path / "_delta_log").mkdir()

    def write(*properties):
        for version, configuration in enumerate(properties):
            metadata = {"metaData": METADATA["metaData"] | {"configuration": configuration}}
            actions = [{"commitInfo": {"timestamp": version}}, metadata]
            actions += [] if version else [PROTOCOL]
            text = "\n".join(map(json.dumps, actions))
            (tmp_path / format_commit_name(version)).write_text(text)
        return DeltaLog(str(tmp_path))

    return write


ON = {"delta.enableInCommitTimestamps": "true"}
SINCE_2 = {**ON, "delta.inCommitTimestampEnablementVersion": "2"}


def test_commits_without_in_commit_timestamps_are_refused(log):
    delta_log = log({}, {}, SINCE_2, SINCE_2)
    remedy = f"ALTER TABLE delta.`{delta_log.location}` SET TBLPROPERTIES"
    setting = "'delta.enableInCommitTimestamps' = 'true'"

    def check(after, upto, *, staged=False):
        check_timestamps(delta_log, Range(from_=Moment(after), to=Moment(upto)), staged=staged)

    with raises_naming(SourceError, delta_log.location, remedy, setting, "delta-rs"):
        check(0, 1)
    with raises_naming(UntimedError, remedy, setting, "version 2", "version 1"):
        check(0, 3)
    with raises_naming(SourceError, delta_log.location, remedy, setting):
        check(-1, 1, staged=True)
    check(1, 3)
    check(0, 3, staged=True)


def test_a_table_made_with_in_commit_timestamps_has_them_from_the_first_commit(log):
    check_timestamps(log(ON, ON), Range(from_=Moment(-1), to=Moment(1)), staged=False)


def test_a_kind_of_index_that_cannot_be_loaded_stops_no_trigger(monkeypatch):
    def load_kinds():
        raise ConfigError("own_package")

    monkeypatch.setattr("iscp_dagster.clickhouse.kinds.index_kind.load_kinds", load_kinds)
    names = ("mirror", "changes", "trigger")
    assert [get_consumer_kind(name).of_images for name in names] == [False, False, True]
    with raises_naming(ConfigError, "own_package"):
        resolve_index(SOURCE, info("mirror"))
