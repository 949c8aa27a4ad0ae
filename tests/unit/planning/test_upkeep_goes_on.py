"""Whatever one table, or one step of the upkeep, raises stops no other."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace

import dagster as dg

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.clickhouse.write.letters import DeadLetter
from iscp_dagster.location.assets import maintenance
from iscp_dagster.location.build import build_shared_definitions
from iscp_dagster.model.errors import ConfigError, IscpError, SourceError
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.writing.serving import ServeResult
from iscp_dagster.upkeep import maintenance as upkeep
from iscp_dagster.upkeep.dead_letters import replay_letters
from support.errors import assert_names
from support.jobs.one_table import Clock, in_memory

SOURCES = [
    SourceTable(f"shop.{name}", key="id", path=f"/{name}", indexes=[Mirror()])
    for name in ("first", "second")
]


def test_letters_of_an_index_that_raises_stay_and_the_others_are_replayed(monkeypatch):
    errors = {SOURCES[0].name: ValueError("broken"), SOURCES[1].name: SourceError("is not read")}

    def fail(_, source):
        raise errors[source.name]

    monkeypatch.setattr(Deployment, "make_delta_log", fail)
    now = datetime(2026, 3, 4, tzinfo=timezone.utc)
    job = {"tenant": "default", "registration": 1, "from_version": 0, "to_version": 1}
    place = {"task": 0, "chunk": 0, "deleted": False, "version": 1, "epoch": 1}
    reason = {"code": 10210, "reason": "no", "row": "{}", "timestamp": now, "at": now}
    names = [*(f"{source.name}/mirror" for source in SOURCES), f"{SOURCES[1].name}/vanished"]
    letters = [DeadLetter(id=name, index=name, **job, **place, **reason) for name in names]
    first, second, vanished = replay_letters(in_memory(Clock()), SOURCES, letters)
    assert type(vanished.error) is ConfigError
    assert type(first.error) is IscpError
    assert_names(str(first.error), "ValueError", "broken")
    assert second.error is errors["shop.second"]


def test_a_step_of_the_collection_that_raises_stops_no_other(monkeypatch):
    def fail(*_):
        raise KeyError("unforeseen")

    served = ServeResult(problems=["shop.first: is not served"])
    monkeypatch.setattr(upkeep, "delete_garbage", fail)
    monkeypatch.setattr(maintenance, "serve_all", lambda *_: served)
    iscp = SimpleNamespace(create_deployment=lambda: in_memory(Clock()))
    resources = {"iscp": iscp, "clickhouse": dg.mem_io_manager}
    job = build_shared_definitions(SOURCES, resources, environ={}).get_job_def(maintenance.COLLECT)
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert not result.success
    (failure,) = result.get_step_failure_events()
    message = failure.step_failure_data.error.message
    assert_names(message, "KeyError", "'unforeseen'", *served.problems)
