"""`iscp job`, `wait`, `usage`, `verify` and `health` over a Delta table and a log in memory."""

import json
import os
import re
import shutil
import time
from dataclasses import asdict, fields, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from importlib.metadata import version

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp_dagster import FullText, Mirror, SourceTable, Trigger, View
from iscp_dagster.api.discovery import load_tables as declared_in
from iscp_dagster.api.environment import open_deployment
from iscp_dagster.api.jobs import Jobs
from iscp_dagster.api.names import parse_job_id, suggest_command
from iscp_dagster.cli.jobs import show as job_show
from iscp_dagster.cli.jobs.specs import parse_time
from iscp_dagster.cli.verdicts import NO_TABLE
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.joblog.history import Usage
from iscp_dagster.model.declared.linking.attach import attach_to_tables
from iscp_dagster.model.declared.linking.clashes import ClashError
from iscp_dagster.model.errors import (
    ConfigError,
    NoTableError,
    SourceError,
    TableGoneError,
    UnavailableError,
)
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.moment import START
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec, TriggerSpec
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.job_specs import make_job_spec
from iscp_dagster.serve import catalog
from support.clients.scripts import run_script
from support.errors import assert_names, raises_naming
from support.jobs import one_table
from support.jobs.log_rows import complete, fail, log_in_memory
from support.jobs.one_table import Clock, commit, in_memory, name_dead_store, name_deployment
from support.services.scripted_http import answering_server

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=timezone.utc)
MIRROR = JobID(db="warehouse", table="order_lines", job="mirror")
TABLE, NAME = "warehouse.order_lines", "warehouse.order_lines/mirror"
TENANT = "clickhouse-connect-and-more"
TENANTS = f"{TENANT}, eu"
RUN = "0d5b7c1e-4f0a-4c58-9a3e-2f1b6c7d8e9f"
REGISTER = ("job", "register", NAME, "--tenant")
UPDATE = ("job", "update", NAME, "--tenant")
STATUS = ("job", "status", NAME, "--tenant", "eu")
PERIODIC = ("--trigger", "periodic", "--interval")

begin = partial(one_table.begin, run=RUN)
finish = partial(one_table.finish, run=RUN)


@pytest.fixture
def clock():
    return Clock(NOW)


@pytest.fixture
def source(tmp_path):
    path = str(tmp_path / "order_lines")
    indexes = [Mirror(columns=["doc"], priority=2), FullText("doc", auto_register=False)]
    source = SourceTable(TABLE, key="id", tenant="region", path=path, indexes=indexes)
    commit(source, TENANT, "eu", doc="x")
    return source


@pytest.fixture
def canceled():
    return []


@pytest.fixture
def jobs(source, clock, canceled, monkeypatch):
    log = log_in_memory(clock=clock, actor="a person")
    deployment = replace(in_memory(clock), log=log)
    jobs = Jobs(deployment=deployment, sources=[source], cancel_runs=canceled.append)
    monkeypatch.setattr("iscp_dagster.api.jobs.open_jobs", lambda environ: jobs)
    return jobs


@pytest.fixture
def iscp(jobs, command_line):
    """Run commands on these jobs."""
    return command_line


@pytest.fixture
def registered(iscp):
    """Register the mirror of tenant eu as it is declared."""
    iscp.read_json(*REGISTER, "eu")


def parse_facts(text):
    pairs = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return {pair[0]: (pair[1].strip() if len(pair) > 1 else "") for pair in pairs}


def read_facts(iscp):
    return parse_facts(iscp.read_text(*STATUS))


def test_a_declared_index_is_registered_as_declared_and_once(iscp, jobs, source):
    assert_names(iscp.read_text(*REGISTER, "eu"), NAME, "tenant eu", "registered")
    assert jobs.get_job("eu", MIRROR).spec == make_job_spec(source, source.get_index("mirror"))
    iscp.read_text(*UPDATE, "eu", "--trigger", "greedy")
    for same in ((), ("--trigger", "greedy"), ("--priority", "2")):
        assert_names(iscp.read_text(*REGISTER, "eu", *same), NAME, "tenant eu", "exists")
        (row,) = iscp.read_json(*REGISTER, "eu", *same)
        assert row == {"tenant": "eu", "job": NAME, "created": False}


def test_registering_what_exists_with_another_specification_is_exit_code_1(iscp, jobs, registered):
    options = ("eu", *PERIODIC, "1m", "--priority", "5")
    differences = ('schedule: {}, not {"interval": "1m"}', "priority: 2, not 5")
    (row,) = iscp.read_json(*REGISTER, *options, status=1)
    assert row["created"] is False
    for text in (iscp.read_failure(*REGISTER, *options), row["note"]):
        assert_names(text, "trigger: default, not periodic", *differences)
        assert_names(text, f"iscp job update {NAME} --tenant eu")
    assert jobs.get_job("eu", MIRROR).spec.trigger.job_type == "default"


def test_registering_for_all_names_the_tenant_that_keeps_another_specification(iscp, jobs):
    iscp.read_text(*REGISTER, "eu", "--priority", "9")
    text = iscp.read_failure(*REGISTER, "*", "--priority", "5")
    assert_names(text, "every tenant", "registered", "'eu'", "priority: 9, not 5")
    iscp.read_text(*UPDATE, "*", "--priority", "5")
    iscp.read_text(*REGISTER, "*", "--priority", "5")
    for tenant in ("eu", TENANT):
        iscp.read_text("job", "unregister", NAME, "--tenant", tenant)
    text = iscp.read_failure(*REGISTER, "*", "--priority", "4")
    assert_names(text, "later tenants", "priority: 5, not 4")


def test_registering_a_tenant_without_rows_in_the_table_says_so(iscp):
    code, text = iscp(*REGISTER, "us")
    assert code == 0
    assert_names(text, "tenant us", "registered", "'us'")
    (row,) = iscp.read_json(*REGISTER, "de")
    assert row["created"] is True
    assert_names(row["note"], "'de'")
    assert iscp.read_json(*REGISTER, "eu") == [{"tenant": "eu", "job": NAME, "created": True}]


class Words:
    """A user's own consumer."""

    def __init__(self, source, info):
        pass

    def consume(self, retriever):
        pass


def test_every_option_reaches_the_spec(iscp, jobs):
    name = f"{TABLE}/words"
    options = ["--type", f"{__name__}:Words", "--columns", "doc, id", "--trigger", "periodic"]
    options += ["--interval", "10s", "--share", "--independent", "--priority", "7"]
    options += ["--max-versions", "3", "--max-bytes", "4", "--tenant", "eu"]
    options += ["--option", 'text=["doc"]', "--option", "tokenizer=ngrams(3)"]
    iscp.read_text("job", "register", name, *options)
    spec = jobs.get_job("eu", parse_job_id(name)).spec
    schedule = {"interval": "10s", "share": True}
    assert spec.trigger == TriggerSpec(job_type="periodic", schedule=schedule, independent=True)
    asked = {"columns": ("doc", "id"), "options": {"text": ["doc"], "tokenizer": "ngrams(3)"}}
    consumer = ConsumerInfo(type=f"{__name__}:Words", **asdict(parse_job_id(name)), **asked)
    bounds = {"priority": 7, "max_versions": 3, "max_bytes": 4}
    assert spec.detail == IterationDetail(**bounds, consumer=consumer)


@pytest.mark.parametrize("trigger", [(), ("--trigger", "greedy")])
@pytest.mark.parametrize("schedule", [("--interval", "1h"), ("--share",), ("--no-share",)])
def test_a_trigger_without_a_schedule_is_given_none(iscp, jobs, trigger, schedule):
    text = iscp.read_failure(*REGISTER, "eu", *trigger, *schedule)
    kind, setting = trigger[-1] if trigger else "default", schedule[0].rpartition("-")[2]
    assert_names(text, f"Job {NAME}", f"'{kind}'", setting)
    assert jobs.list_jobs() == []
    iscp.read_text(*REGISTER, "eu", *trigger)
    assert iscp.read_failure(*UPDATE, "eu", *schedule) == text


def night(jobs, latest, now):
    """A user's own trigger."""
    return ()


@pytest.mark.parametrize(
    ("before", "update", "after"),
    [
        ((), (*PERIODIC, "5m"), ("periodic", {"interval": "5m"})),
        (
            (*PERIODIC, "1h", "--share"),
            ("--interval", "5m"),
            ("periodic", {"interval": "5m", "share": True}),
        ),
        (
            ("--trigger", f"{__name__}:night", "--interval", "1h"),
            ("--interval", "5m", "--share"),
            (f"{__name__}:night", {"interval": "5m", "share": True}),
        ),
        ((*PERIODIC, "1h"), ("--trigger", "greedy"), ("greedy", {})),
    ],
)
def test_an_update_keeps_what_it_leaves_out_of_a_trigger(iscp, jobs, before, update, after):
    iscp.read_text(*REGISTER, "eu", *before)
    assert iscp.read_json(*UPDATE, "eu", *update)["changed"] is True
    trigger = jobs.get_job("eu", MIRROR).spec.trigger
    assert (trigger.job_type, dict(trigger.schedule)) == after


def test_jobs_that_an_interval_would_leave_with_different_triggers_are_not_given_it(iscp, jobs):
    iscp.read_text(*REGISTER, "eu", *PERIODIC, "1h", "--share")
    iscp.read_text(*REGISTER, TENANT)
    for options in (("--interval", "5m"), (*PERIODIC, "5m")):
        text = iscp.read_failure(*UPDATE, "*", *options)
        assert_names(text, "--trigger", "--interval", "--no-share", "--tenant")
    iscp.read_text(*UPDATE, "*", *PERIODIC, "5m", "--no-share")
    triggers = [job.spec.trigger for job in jobs.list_jobs()]
    assert {trigger.job_type for trigger in triggers} == {"periodic"}
    schedules = [dict(trigger.schedule) for trigger in triggers]
    assert schedules == [{"interval": "5m", "share": False}] * 2
    iscp.read_text(*UPDATE, "eu", "--trigger", "default")
    iscp.read_text(*UPDATE, "*", "--trigger", "greedy")
    assert {job.spec.trigger.job_type for job in jobs.list_jobs()} == {"greedy"}


def test_a_file_registers_many(iscp, jobs, tmp_path):
    file = tmp_path / "jobs.yaml"
    file.write_text(
        f"- {{tenant: eu, job: {NAME}}}\n"
        "- tenant: '*'\n"
        f"  job: {TABLE}/copy\n"
        "  spec:\n"
        "    trigger: {job_type: greedy}\n"
        "    detail: {priority: 3, consumer: {type: mirror, columns: [doc]}}\n"
    )
    rows = iscp.read_json("job", "register", "--file", file)
    registered = [(row["tenant"], row["job"], row["created"]) for row in rows]
    assert registered == [("eu", NAME, True), ("*", f"{TABLE}/copy", True)]
    copy = jobs.get_job("eu", parse_job_id(f"{TABLE}/copy")).spec
    assert (copy.trigger.job_type, copy.detail.priority) == ("greedy", 3)
    assert copy.detail.consumer.columns == ("doc",)


FIRST = f"- job: {NAME}\n"
CONTRARY = "spec: {detail: {consumer: {columns: [doc]}}}"


def test_a_file_with_a_job_that_its_siblings_contradict_registers_none(
    iscp, jobs, tmp_path, registered
):
    file = tmp_path / "jobs.yaml"
    file.write_text(
        f"- {{tenant: us, job: {TABLE}/copy, spec: {{detail: {{consumer: {{type: mirror}}}}}}}}\n"
        f"- {{tenant: us, job: {NAME}, {CONTRARY}}}\n"
    )
    text = iscp.read_failure("job", "register", "--file", file)
    assert_names(text, "entry 2", f"Index {NAME}", f"iscp job update {NAME} --tenant '*'")
    assert len(jobs.list_jobs()) == 1


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (f"{FIRST}- job: shop.gone/mirror\n", ["entry 2", "'shop.gone'"]),
        (f"{FIRST}- {{job: {NAME}, spce: {{}}}}\n", ["entry 2", "'spce'"]),
        (f"{FIRST}- tenant: eu\n", ["entry 2", "'job'"]),
        (f"{FIRST}- {{job: {NAME}, spec: {{trigger: {{job_type: x}}}}}}\n", ["entry 2", "'x'"]),
        (f"{FIRST}- {{tenant: eu, job: {NAME}, {CONTRARY}}}\n", ["entry 2", f"index {NAME}"]),
        (f"job: {NAME}\n", ["jobs.yaml", "list"]),
        ("- [\n", ["jobs.yaml", "YAML"]),
    ],
)
def test_a_file_with_one_wrong_job_registers_none(iscp, jobs, tmp_path, text, values):
    file = tmp_path / "jobs.yaml"
    file.write_text(text)
    assert_names(iscp.read_failure("job", "register", "--file", file), *values)
    assert jobs.list_jobs() == []


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["register"], ["--file"]),
        (["register", NAME, "--file", "x.yaml"], ["--file"]),
        (["register", "--file", "/no/such.yaml"], ["/no/such.yaml"]),
        (["register", "order_lines/mirror"], ["'order_lines/mirror'", "database.table/job"]),
        (["register", "shop.gone/x"], ["Job shop.gone/x", "'shop.gone'", TABLE]),
        (["register", f"{TABLE}/x"], [f"Job {TABLE}/x", "'x'", "--type"]),
        (["register", NAME, "--option", "text"], ["'text'", "name=value"]),
        (["update", NAME], ["iscp job update -h"]),
        (["update", NAME, "--priority", "1"], [NAME, "'default'"]),
        (["status", NAME], [NAME, "any tenant"]),
        (["list", "--state", "done"], ["'done'", "pending, running, canceled"]),
        (["count", "--state", "done"], ["'done'", "pending, running, canceled"]),
        (["status", "shop.orders/mirror"], ["'shop.orders'", TABLE]),
        (["resume", "shop.orders/mirror"], ["'shop.orders'", TABLE]),
        (["register", f"{TABLE}/x", "--type", "json:Thing"], ["'json:Thing'", "'json'", "'Thing'"]),
        (
            ["register", f"{TABLE}/x", "--type", "json:__name__"],
            ["'json:__name__'", "'json'", "callable"],
        ),
        (["list", "--table", "orders"], ["'orders'", "database.table"]),
        (["history", "--since", "soon"], ["'soon'"]),
        (["history", f"{NAME}s"], [f"'{NAME}s'", NAME]),
        (["history", "--tenant", "xx"], ["'xx'", TENANTS]),
        (["list", "--table", "shop.orders"], ["'shop.orders'", TABLE]),
        (["list", "--tenant", "xx"], ["'xx'", TENANTS]),
        (
            ["register", f"{TABLE}/words", "--type", "text"],
            [f"iscp: Job {TABLE}/words", "--option text=..."],
        ),
        (
            ["register", f"{TABLE}/v", "--type", "vector", "--option", "vector=v"],
            ["vector", "--option dimension=..."],
        ),
        (["register", f"{TABLE}/m", "--type", "text", "--option", "text=7"], ["'m'", "text 7"]),
        (["register", NAME, "--option", 'types={"id": "Foo"}'], ["'Foo'", NAME]),
    ],
)
def test_what_is_wrong_is_one_message_and_exit_code_1(iscp, jobs, arguments, values):
    text = iscp.read_failure("job", *arguments)
    assert text.startswith("iscp: ")
    assert_names(text, *values)
    assert jobs.list_jobs() == []


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["stauts"], ["'stauts'", "'status'"]),
        (["job", "stauts"], ["'stauts'", "'status'"]),
        (["job", "wait"], ["'wait'", "`iscp wait`"]),
        (["nothing-like-it"], ["'nothing-like-it'"]),
        (["wait", "a.b", "--version", "1x"], ["'--version'", "'1x'", "integer"]),
        (["health", "--max-lag", "x"], ["'--max-lag'", "'x'", "number"]),
        (["job", "history", "--most", "0"], ["'--most'", "'0'"]),
    ],
)
def test_a_mistyped_command_or_value_is_shown_with_what_was_meant(iscp, arguments, values):
    text = iscp.read_failure(*arguments, status=2)
    assert_names(" ".join(text.replace("│", " ").split()), *values)


def test_names_like_the_wrong_one_come_first_where_not_all_fit(iscp, jobs, source):
    commit(source, *(f"c{number}" for number in range(30)), "org-98", "org-19")
    other = JobID(db="warehouse", table="refunds", job="mirror")
    for number in range(20):
        spec = JobSpec(detail=IterationDetail(consumer=ConsumerInfo(type="m:N", **asdict(other))))
        jobs.deployment.log.register(f"org-{200 + number}", other, "t2", spec)
    for command in (("job", "list", "--table", TABLE), ("job", "history", NAME)):
        text = iscp.read_failure(*command, "--tenant", "org-198")
        assert_names(text, "'org-198'", f"{TABLE}: org-98, org-19, c0, c1", 24)
    text = iscp.read_failure("job", "list", "--tenant", "org-222")
    assert re.search(r"'org-222'.*: org-2\d\d, ", text)
    text = iscp.read_failure("wait", TABLE, "--tenant", "org-198")
    assert_names(text, "'org-198'", "org-98, org-19, c0")


@pytest.mark.parametrize(
    ("command", "noun"),
    [(("job", "list"), "jobs"), (("job", "history"), "history"), (("usage",), "usage")],
)
def test_an_empty_list_is_text_for_people_and_empty_json(iscp, command, noun):
    assert iscp.read_text(*command) == f"no {noun}\n"
    assert iscp.read_json(*command) == []


@pytest.mark.parametrize(
    ("index", "values"),
    [("nope", ["'nope'", "database.table/index"]), (f"{NAME}s", [f"'{NAME}s'", NAME])],
)
def test_the_index_of_a_dead_letter_is_called_an_index(iscp, monkeypatch, index, values):
    monkeypatch.setattr("iscp_dagster.upkeep.dead_letters.find_letters", lambda *_, **__: [])
    text = iscp.read_failure("dlq", "list", "--index", index)
    assert_names(text, "index", *values)
    assert "job" not in text


def test_a_verb_says_whether_it_changed_anything(iscp, jobs):
    iscp.read_json("job", "register", NAME)
    for verb, outcome, again, paused_at in [
        ("pause", "paused", "already paused", [NOW]),
        ("resume", "resumed", "not paused", [None]),
        ("unregister", "unregistered", "already unregistered", []),
    ]:
        for text in (outcome, again):
            assert iscp.read_text("job", verb, NAME) == f"{NAME}, tenant default: {text}\n"
        row = iscp.read_json("job", verb, NAME)
        assert row == {"tenant": "default", "job": NAME, "changed": False}
        assert [job.paused_at for job in jobs.list_jobs()] == paused_at


def test_an_update_interrupts_when_asked_and_says_what_it_interrupted(iscp, jobs, source, canceled):
    iscp.read_text(*REGISTER, "eu", "--independent")
    begin(jobs, source)
    assert iscp.read_json(*UPDATE, "eu", "--priority", "9")["changed"] is True
    assert (jobs.get_job("eu", MIRROR).state, canceled) == (JobState.RUNNING, [])
    interrupt, row = (*UPDATE, "eu", "--interrupt"), {"tenant": "eu", "job": NAME}
    assert_names(iscp.read_text(*interrupt), NAME, "tenant eu", "unchanged", "1 job")
    assert (jobs.get_job("eu", MIRROR).state, canceled) == (JobState.CANCELED, [{RUN}])
    for outcome in ("updated", "unchanged"):
        text = iscp.read_text(*interrupt, "--no-independent")
        assert_names(text, NAME, "tenant eu", outcome, "no iteration")
    job = jobs.get_job("eu", MIRROR)
    assert (job.priority, job.spec.trigger.independent) == (9, False)
    answer = iscp.read_json(*interrupt, "--no-independent")
    assert answer == row | {"changed": False, "interrupted": 0}
    one_table.begin(jobs, source, run="another run")
    answer = iscp.read_json(*interrupt, "--priority", "7")
    assert answer == row | {"changed": True, "interrupted": 1}


def test_rebuilding_makes_another_generation_for_all_and_starts_one_over_in_its_place(
    iscp, jobs, source, clock, capsys
):
    for tenant in (TENANT, "eu"):
        iscp.read_text(*REGISTER, tenant)
    rebuild = ("job", "rebuild", NAME, "--tenant")
    finish(jobs, source, clock=clock)
    assert_names(iscp.read_text(*rebuild, "*"), NAME, "every tenant", "rebuilt")
    rows = {(job.spec.detail.consumer.generation, job.watermark) for job in jobs.list_jobs()}
    assert rows == {(1, START)}
    job_show.print_status(jobs.list_jobs("eu"), {}, {}, {MIRROR})
    assert_names(parse_facts(capsys.readouterr().out)["readers"], "see", "previous generation")
    finish(jobs, source, clock=clock)
    assert_names(iscp.read_text(*rebuild, "eu"), NAME, "tenant eu", "rebuilt")
    job = jobs.get_job("eu", MIRROR)
    assert (job.spec.detail.consumer.generation, job.watermark) == (1, START)
    assert iscp.read_json(*rebuild, "eu")["changed"] is True


def test_the_status_of_what_is_building_has_rows_done_of_rows_to_do(iscp, registered, monkeypatch):
    # The first number comes from ClickHouse, which no unit test has.
    monkeypatch.setattr(IndexStore, "count_staged", lambda store, tenant: len(tenant))
    assert_names(read_facts(iscp)["state"], "building", "(default)", "2 rows of 1")
    (row,) = iscp.read_json(*STATUS)
    assert (row["building"], row["rows_done"], row["rows_to_do"]) == (True, 2, 1)


def test_a_job_is_building_until_its_first_iteration_has_completed(iscp, jobs, source, registered):
    assert_names(read_facts(iscp)["state"], "building", "waits", "(default)")
    fail(jobs.deployment.log, begin(jobs, source), 1_100, "no answer")
    assert_names(read_facts(iscp)["state"], "building", "waits", "tried again")
    jobs.pause_job("eu", MIRROR)
    assert read_facts(iscp)["state"] == "building, paused"
    jobs.resume_job("eu", MIRROR)
    claim = begin(jobs, source)
    assert read_facts(iscp)["state"] == "building"
    (row,) = iscp.read_json(*STATUS)
    assert (row["state"], row["building"], row["watermark"]) == ("running", True, None)
    complete(jobs.deployment.log, claim, claim.range.to, {})
    jobs.pause_job("eu", MIRROR)
    assert read_facts(iscp)["state"] == "completed, paused"
    (row,) = iscp.read_json(*STATUS)
    assert (row["building"], row["paused"], row["watermark"]["version"]) == (False, True, 0)


def test_a_job_in_error_is_planned_again_by_a_repair_or_an_update(iscp, jobs, source, registered):
    def fail_job():
        fail(jobs.deployment.log, begin(jobs, source), 10_300, "no such [type]")

    fail_job()
    facts = read_facts(iscp)
    assert (facts["state"], facts["code"]) == ("error", "10300")
    assert facts["message"] == "no such [type]"
    repair = ("job", "repair", NAME, "--tenant", "eu")
    assert_names(iscp.read_text(*repair), NAME, "tenant eu", "planned")
    assert jobs.get_job("eu", MIRROR).state is JobState.COMPLETED
    assert iscp.read_json(*repair)["changed"] is False
    fail_job()
    for outcome in ("unchanged, planned again", "unchanged"):
        text = iscp.read_text(*UPDATE, "eu", "--priority", "2")
        assert text == f"{NAME}, tenant eu: {outcome}\n"


def test_the_status_shows_the_watermark_the_lag_and_the_latest_iteration(
    iscp, jobs, source, clock, registered
):
    finish(jobs, source, clock=clock, inserted=1_234)
    commit(source, "eu")
    log = jobs.deployment.make_delta_log(source)
    lag = (log.get_latest_moment().micros - log.get_moment(0).micros) / 1e6
    facts = read_facts(iscp)
    assert facts["watermark"] == f"0 of {log.get_moment(0).at:%Y-%m-%d %H:%M:%S} UTC"
    assert facts["lag"] == f"{lag:,.1f} s"
    assert facts["last"].split() == ["range", "all", "to", "0"]
    assert facts["started"] == "2026-03-04 05:06:07 UTC"
    assert facts["ended"] == "2026-03-04 05:06:10 UTC"
    assert (facts["code"], facts["counts"]) == ("0", "inserted 1,234")
    (row,) = iscp.read_json(*STATUS)
    assert (row["lag"], row["status"]["counts"]) == (lag, {"inserted": 1_234})
    assert row["status"]["to"] == {"version": 0, "at": log.get_moment(0).at.isoformat()}


def test_the_status_is_that_of_every_tenant_unless_one_is_named(iscp):
    iscp.read_text(*REGISTER, "*")
    for options in ((), ("--tenant", "*")):
        rows = iscp.read_json("job", "status", NAME, *options)
        assert [row["tenant"] for row in rows] == [TENANT, "eu"]
    counts, *lines = iscp.read_text("job", "status", NAME).splitlines()
    assert counts == "2 jobs: 2 building"
    assert [line.split()[1] for line in lines if line.startswith("state")] == ["building,"] * 2
    text = iscp.read_text("job", "status", NAME, "--limit", 1)
    assert text.count("watermark") == 1
    assert_names(text, "1 of 2", "--limit", "--tenant")
    # Other verbs are for one tenant.
    assert_names(iscp.read_failure("job", "pause", NAME), "'default'", TENANTS, "--tenant '*'")


def test_no_lag_is_shown_of_a_table_that_cannot_be_read_whatever_it_raises(
    iscp, jobs, source, registered, monkeypatch
):
    jobs.sources[:] = [replace(source, path="/no/such/table")]
    (row,) = iscp.read_json(*STATUS)
    assert row["lag"] is None
    assert_names(read_facts(iscp)["lag"], "unknown")
    jobs.sources[:] = [source]
    monkeypatch.setattr("iscp_dagster.upkeep.position.read_positions", lambda *_, **__: 1 / 0)
    for command in (("job", "list"), STATUS):
        (row,) = iscp.read_json(*command)
        assert row["lag"] is None


def read_eu_lines(iscp):
    """Return the words of the two lines that `iscp job list` has for tenant eu."""
    lines = iscp.read_text("job", "list").splitlines()
    second = next(number for number, line in enumerate(lines) if line.startswith("eu "))
    return lines[second - 1].split(), lines[second].split()


def test_jobs_are_listed_by_tenant_table_and_state_with_their_lag(iscp, jobs, source):
    iscp.read_text(*REGISTER, "*")
    claim = begin(jobs, source)
    text = iscp.read_text("job", "list")
    counts, heads, more_heads, *_ = text.splitlines()
    assert counts == "2 jobs: 2 building; 1 standing registration (*)"
    assert heads.split() == ["job", "state", "version", "type", "code"]
    assert more_heads.split() == ["tenant", "lag", "trigger"]
    assert read_eu_lines(iscp) == ([NAME, "building", "mirror"], ["eu", "default"])
    rows = iscp.read_json("job", "list", "--state", "running", "--table", TABLE)
    assert [(row["tenant"], row["job"]) for row in rows] == [("eu", NAME)]
    assert iscp.read_json("job", "list", "--state", "error") == []
    assert "building, waits" in text
    for verb in ("list", "count"):
        rows = iscp.read_json("job", verb, "--state", "building")
        assert [row["tenant"] for row in rows] == [TENANT, "eu"]
    complete(jobs.deployment.log, claim, claim.range.to, {})
    rows = iscp.read_json("job", "list", "--state", "building")
    assert [(row["tenant"], row["lag"]) for row in rows] == [(TENANT, None)]
    commit(source, "eu")
    log = jobs.deployment.make_delta_log(source)
    lag = (log.get_moment(1).micros - log.get_moment(0).micros) / 1e6
    first, second = read_eu_lines(iscp)
    assert (first[2], second[1:3]) == ("0", [f"{lag:,.1f}", "s"])
    (row,) = iscp.read_json("job", "list", "--tenant", "eu")
    assert (row["tenant"], row["lag"]) == ("eu", lag)


def test_the_shell_completes_commands_and_their_options(iscp, monkeypatch):
    monkeypatch.setenv("_ISCP_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_CWORD", "2")
    for words, completions in {
        "./iscp job re": ["register", "resume", "repair", "rebuild"],
        "iscp verify --": ["--tenant", "--index", "--differs", "--limit", "--json", "--help"],
    }.items():
        monkeypatch.setenv("COMP_WORDS", words)
        assert iscp()[1].split() == completions


def test_the_version_is_that_of_the_package_and_help_names_the_command(iscp):
    assert iscp.read_text("--version") == f"iscp {version('iscp_dagster')}\n"
    for command in ("job", "wait"):
        assert f"iscp {command}" in iscp.read_text(command, "--help")


def test_the_list_ends_with_what_is_wrong_with_the_tables(iscp, source, registered):
    def read_last_line():
        return iscp("job", "list")[1].splitlines()[-1]

    assert source.name + ": " not in read_last_line()
    commit(source, None)
    assert_names(read_last_line(), f"{source.name}: 1 row")
    shutil.rmtree(source.path)
    assert_names(read_last_line(), source.name, source.path)


def test_what_is_registered_for_every_tenant_is_listed_first(iscp):
    iscp.read_text(*REGISTER, "*", "--trigger", "greedy")
    _, _, _, first, second, *_ = iscp.read_text("job", "list").splitlines()
    assert first.split()[1:] == ["mirror"]
    assert second.split() == ["*", "greedy"]
    standing, *rows = iscp.read_json("job", "list", "--table", TABLE)
    assert (standing["tenant"], standing["job"], standing["state"]) == ("*", NAME, None)
    assert standing["spec"]["trigger"]["job_type"] == "greedy"
    assert None not in {row["state"] for row in rows}
    for options in (("--tenant", "eu"), ("--state", "completed")):
        assert "*" not in {row["tenant"] for row in iscp.read_json("job", "list", *options)}


def test_a_declared_trigger_is_registered_shown_and_listed_as_an_index_is(iscp, jobs, source):
    view = View("big", of=source, where="id > 3", auto_register=False)
    large = Trigger("large", on=view, match="id > 7", priority=5, auto_register=False)
    jobs.sources[:] = attach_to_tables([source], [view], [large])
    for name in ("big", "large"):
        iscp.read_text("job", "register", f"{TABLE}/{name}", "--tenant", "eu")
    facts = parse_facts(iscp.read_text("job", "status", f"{TABLE}/large", "--tenant", "eu"))
    assert (facts["type"], facts["priority"]) == ("event trigger", "5")
    words = iscp.read_text("job", "list").split()
    assert (words.count("changes"), words.count("trigger")) == (1, 2), "one of them is a head"


def test_jobs_are_counted_by_state_and_those_in_one_state_listed(iscp, jobs, source):
    iscp.read_text(*REGISTER, "*")
    fail(jobs.deployment.log, begin(jobs, source), 10_300, "a long message, " * 20)
    counts = {"pending": 0, "running": 0, "canceled": 0, "error": 1, "completed": 1}
    assert iscp.read_json("job", "count") == counts
    assert ["error", "1"] in [line.split() for line in iscp.read_text("job", "count").splitlines()]
    text = iscp.read_text("job", "count", "--state", "error")
    assert text.startswith("1 job\n")
    assert_names(text, 10300)
    (row,) = iscp.read_json("job", "count", "--state", "error")
    assert (row["tenant"], row["job"], row["status"]["code"]) == ("eu", NAME, 10_300)


MANY = [f"tenant {number:03}" for number in range(120)]


@pytest.fixture
def many(iscp, jobs, source):
    """Register jobs of 122 tenants, the last in error."""
    commit(source, *MANY)
    iscp.read_text(*REGISTER, "*")
    fail(jobs.deployment.log, begin(jobs, source, MANY[-1]), 10_300, "a long message, " * 20)


def test_a_long_list_begins_with_counts_and_what_is_in_error(iscp, many):
    counts, *lines = iscp.read_text("job", "list").splitlines()
    assert counts == "122 jobs: 1 error, 121 building; 1 standing registration (*)"
    rows = [line for line in lines if line.startswith("warehouse.order")]
    assert lines[3].startswith("*")
    assert ("error" in rows[1], MANY[-1] in lines[5]) == (True, True)
    assert len([line for line in rows if "building" in line]) == 99
    assert_names(lines[-1], "100 of 122", "--limit", "--state", "--tenant", "--table")
    assert len(iscp.read_json("job", "list")) == 123
    assert len(iscp.read_json("job", "list", "--limit", 3)) == 4
    assert iscp.read_text("job", "list", "--state", "error").startswith("1 job: 1 error\n")
    assert "--limit" not in iscp.read_text("job", "list", "--limit", 122)


def test_lists_are_one_line_a_row_when_piped(iscp, many, piped):
    lists = {
        ("job", "list"): 103 + 1,
        ("job", "count", "--state", "error"): 2 + 1,
        ("job", "history"): 100 + 1,
        ("usage",): 2 + 1,
    }
    for arguments, number in lists.items():
        code, text = iscp(*arguments)
        assert code == 0, text
        assert len(text.splitlines()) == number, text
    _, _, row = iscp("job", "count", "--state", "error")[1].splitlines()
    assert ("a long message, " * 20).strip() in row
    assert row.startswith(f"{NAME}\t{MANY[-1]}\tall to 1\t10300\t2026-03-04\t")
    (newest,) = iscp("job", "history", "--limit", 1)[1].splitlines()[1:]
    assert newest.split()[2:6] == [NAME, *MANY[-1].split(), "fail"]
    status = iscp("job", "status", NAME, "--tenant", MANY[-1])[1]
    assert f"message    {('a long message, ' * 20).strip()}\n" in status


def test_usage_is_summed_by_tenant_and_begins_with_totals(iscp, jobs, source, clock):
    iscp.read_text(*REGISTER, "*")
    finish(jobs, source, TENANT, inserted=5, bytes=1_000)
    finish(jobs, source, "eu", clock=clock, inserted=1_234_567, bytes=9_876_543_210)
    text = iscp.read_text("usage")
    totals, *lines = text.splitlines()
    assert totals == "2 jobs: 2 iterations, 1,234,572 inserted, 9,876,544,210 bytes, 3.0 seconds"
    assert [line.split()[0] for line in lines[-3::2]] == ["eu", TENANT]
    assert "1,234,567" in text.split()
    rows = iscp.read_json("usage")
    assert [row["tenant"] for row in rows] == [TENANT, "eu"]
    names = {"job", *(field.name for field in fields(Usage))} - {"name"}
    assert all(row.keys() == names for row in rows)
    assert (rows[1]["job"], rows[1]["inserted"], rows[1]["seconds"]) == (NAME, 1_234_567, 3.0)
    assert (rows[1]["iterations"], rows[1]["failed"], rows[1]["canceled"]) == (1, 0, 0)
    clock.now += timedelta(days=2)
    assert iscp.read_json("usage", "--since", "1d") == []
    assert len(iscp.read_json("usage", "--since", "2026-03-01")) == 2


def test_the_history_is_what_happened_oldest_first(iscp, jobs, source, clock):
    iscp.read_text(*REGISTER, "*")
    clock.now += timedelta(hours=2)
    finish(jobs, source, TENANT, clock=clock, inserted=5)
    jobs.pause_job(TENANT, MIRROR)
    text = iscp.read_text("job", "history", NAME)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[-6:] == [
        f"2026-03-04 {NAME} start all to 0 {RUN[:8]}",
        f"07:06:07 {TENANT} completed → running",
        f"2026-03-04 {NAME} complete all to 0 {RUN[:8]}",
        f"07:06:10 {TENANT} running → completed",
        f"2026-03-04 {NAME} pause a person",
        f"07:06:10 {TENANT} completed",
    ]
    events = [line.split()[2] for line in lines if line.startswith("2026-03-04")]
    assert events == ["register", "register", "start", "complete", "pause"]
    rows = iscp.read_json("job", "history", "--tenant", TENANT, "--since", "1h")
    assert [(row["event"], row["before"], row["after"]) for row in rows] == [
        ("start", "completed", "running"),
        ("complete", "running", "completed"),
        ("pause", "completed", "completed"),
    ]
    assert (rows[1]["who"], rows[1]["to"]["version"], rows[1]["inserted"]) == (RUN, 0, 5)
    assert {row["registration"] for row in rows} == {str(jobs.get_job(TENANT, MIRROR).registration)}
    assert len(iscp.read_json("job", "history", "--most", "1")) == 1


def test_wait_says_which_version_is_searchable_and_in_vain_it_is_exit_code_1(iscp, jobs, source):
    iscp.read_text(*REGISTER, "*")
    # In no log and without a job: the wait ends at once.
    text = iscp.read_failure("wait", TABLE, "--tenant", "nobody", "--timeout", "60")
    assert_names(text, "'nobody'", TENANTS)
    text = iscp.read_failure("wait", TABLE, "--timeout", "0")
    assert_names(text, "'mirror'", f"'{TENANT}', 'eu'")
    finish(jobs, source, "eu")
    command = ("wait", TABLE, "--tenant", "eu", "--timeout", "0")
    assert_names(iscp.read_text(*command), TABLE, "version 0")
    row = {"table": TABLE, "tenant": "eu", "version": 0}
    assert iscp.read_json(*command, "--version", "0") == row


def test_the_help_loads_nothing_that_is_slow():
    code = (
        "import sys\n"
        "sys.argv = ['iscp', 'job', '--help']\n"
        "from iscp_dagster.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "slow = {'sqlalchemy', 'dagster', 'deltalake', 'pyarrow', 'pyspark', 'httpx', 'yaml'}\n"
        "assert not slow & set(sys.modules), slow & set(sys.modules)\n"
    )
    run_script(code)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("1.5h", NOW - timedelta(minutes=90)),
        ("2w", NOW - timedelta(days=14)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=timezone.utc)),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=timezone.utc)),
    ],
)
def test_a_time_is_a_length_back_from_now_or_an_iso_time(text, time):
    assert parse_time(text, NOW) == time


@pytest.mark.parametrize("text", ["", "shop/x", "shop.orders", "shop.orders/", ".orders/x"])
def test_a_job_is_named_as_it_is_shown(text):
    assert parse_job_id(str(MIRROR)) == MIRROR
    with raises_naming(ConfigError, repr(text), "database.table/job"):
        parse_job_id(text)


@pytest.fixture
def lake(tmp_path, source, monkeypatch):
    """Set up a deployment without services: three declared tables, one of them in the lake."""
    addresses = name_deployment(monkeypatch, tmp_path)
    missing = SourceTable("warehouse.to_come", key="id", indexes=[Mirror()])
    refused = replace(missing, name="warehouse.refused", path="s3://bucket/refused")
    name_dead_store(monkeypatch)
    tables = [missing, refused, source]
    monkeypatch.setattr("iscp_dagster.api.discovery.load_tables", lambda environ: tables)
    return open_deployment(addresses)


def register_mirror(lake, source, *tenants, table_id=None):
    table_id = table_id or lake.make_delta_log(source).get_table_id()
    for tenant in tenants:
        lake.log.register(tenant, MIRROR, table_id, make_job_spec(source, source.indexes[0]))


def list_unbuilt(iscp, *options):
    """Return index, tenant, code and message of what `iscp verify` finds not to be built."""
    rows = [row for row in iscp.read_json("verify", *options, status=2) if "index" in row]
    assert {(row["built"], row["agrees"]) for row in rows} == {(False, False)}
    return [(row["index"], row["tenant"], row["code"], row["message"]) for row in rows]


def test_verify_goes_on_with_the_tables_that_are_there(iscp, lake, source):
    register_mirror(lake, source, "eu", TENANT)
    jobs = Jobs(deployment=lake, sources=[source], cancel_runs=pytest.fail)
    fail(lake.log, begin(jobs, source), 10_300, "it is broken")
    rows = iscp.read_json("verify", status=2)
    unbuilt = {row["tenant"]: (row["index"], row["code"]) for row in rows if "index" in row}
    assert unbuilt == {"eu": (NAME, 10_300), TENANT: (NAME, 0)}
    problems = {row["table"]: row["message"] for row in rows if "table" in row}
    assert problems.keys() == {"warehouse.to_come", "warehouse.refused"}
    assert_names(problems["warehouse.refused"], "s3://bucket/refused")
    assert {row["agrees"] for row in rows} == {False}
    text = iscp.read_failure("verify", status=2)
    assert_names(text, f"warehouse.to_come: {NO_TABLE}", "warehouse.refused", f"tenant {TENANT}")
    assert_names(text, f"{NAME}, tenant eu", "10300: it is broken")


def test_verify_says_what_still_has_the_rows_of_a_table_that_was_recreated(iscp, lake, source):
    """Whether or not the table's other jobs were registered again."""
    register_mirror(lake, source, "eu", "us", table_id="the table before")
    code = TableGoneError.code
    lake.log.mark_stranded("the table before", code, "it was recreated")
    for tenants, options in ((["eu", "us"], ()), (["us"], ("--tenant", "us"))):
        rows = list_unbuilt(iscp, "--index", NAME, *options)
        assert rows == [(NAME, tenant, code, "it was recreated") for tenant in tenants]
    assert "nothing to verify" not in iscp.read_failure("verify", "--index", NAME, status=2)
    jobs = Jobs(deployment=lake, sources=[source], cancel_runs=pytest.fail)
    jobs.register_job("eu", MIRROR, make_job_spec(source, source.indexes[0]))
    rows = list_unbuilt(iscp, "--index", NAME)
    assert {row[1:3] for row in rows} == {("us", code), ("eu", 0)}


def test_verify_of_a_tenant_or_an_index_that_there_is_not_is_exit_code_2(iscp, lake):
    for options in ((), ("--index", TABLE)):
        text = iscp.read_failure("verify", "--tenant", "nobody", *options, status=2)
        assert_names(text, "'nobody'", TENANTS)
        assert ("warehouse.to_come" in text) == (not options)
    assert_names(iscp.read_failure("verify", "--index", "no_such", status=2), "'no_such'")
    # A commit has added the tenant, and the runner has not looked since.
    text = iscp.read_failure("verify", "--tenant", "eu", status=2)
    assert (TENANT in text, text.count("tenant 'eu'")) == (False, 1)


def test_verify_of_what_a_person_unregistered_says_how_to_have_it_again(iscp, lake, source):
    register_mirror(lake, source, "eu")
    lake.log.unregister("eu", MIRROR)
    for options in (["--tenant", "eu"], []):
        text = iscp.read_failure("verify", "--index", NAME, *options, status=2)
        assert_names(" ".join(text.split()), f"iscp job register {NAME} --tenant eu")
        assert "runner" not in text


def test_verify_takes_an_index_that_only_its_job_names(iscp, lake, source):
    name = JobID(db="warehouse", table="order_lines", job="copy")
    consumer = ConsumerInfo(type="mirror", db=name.db, table=name.table, job=name.job)
    table_id = lake.make_delta_log(source).get_table_id()
    for info in (consumer, replace(consumer, type="my.own:Consumer", job="own")):
        job_spec = JobSpec(detail=IterationDetail(consumer=info))
        lake.log.register("eu", replace(name, job=info.job), table_id, job_spec)
    assert list_unbuilt(iscp, "--index", str(name)) == [(str(name), "eu", 0, "")]
    # A job with a user's own consumer has no index to compare.
    assert_names(iscp.read_failure("verify", "--index", "own", status=2), "'own'")
    shutil.rmtree(source.path)
    text = iscp.read_failure("verify", "--index", "copy", status=2)
    assert_names(text, f"{TABLE}: {NO_TABLE}")


def test_collect_says_what_would_go_and_then_lets_it_go(iscp, jobs, clock):
    job = (f"{TABLE}/mine", "--tenant", "eu")
    iscp.read_json("job", "register", *job, "--type", f"{__name__}:Words")
    iscp.read_json("job", "unregister", *job)
    assert_names(iscp.read_text("job", "collect"), "0 jobs")
    clock.now += timedelta(hours=25)
    lines = iscp.read_text("job", "collect", "--dry-run").splitlines()
    assert lines[0] == f"{TABLE}/mine, tenant eu: drops nothing"
    assert_names(lines[1], 1, "would be deleted")
    assert len(jobs.deployment.log.list_jobs(include_dropped=True)) == 1
    row = {"tenant": "eu", "job": f"{TABLE}/mine", "drops": "nothing"}
    assert iscp.read_json("job", "collect") == {"dry_run": False, "jobs": [row]}
    assert jobs.deployment.log.list_jobs(include_dropped=True) == []


def test_flush_says_how_many_watermarks_moved(iscp, jobs, source):
    iscp.read_json(*REGISTER, "*")
    for tenant in ("eu", TENANT):
        finish(jobs, source, tenant)
    commit(source, TENANT)
    assert_names(iscp.read_text("job", "flush"), f"{TABLE}: 1")
    versions = {job.key.tenant: job.watermark.version for job in jobs.deployment.log.list_jobs()}
    assert versions == {"eu": 1, TENANT: 0}
    assert iscp.read_json("job", "flush") == {"moved": {TABLE: 0}, "problems": []}


@pytest.fixture
def dagster(monkeypatch, tmp_path):
    """Run a webserver that gives the set answers, and a ClickHouse that answers."""
    # A stack of this clone, which may be up, answers for what is not set.
    monkeypatch.setenv("ISCP_HOME", str(tmp_path))
    with answering_server() as webserver, answering_server() as clickhouse:
        monkeypatch.setenv("DAGSTER_URL", webserver.url)
        monkeypatch.setenv("CLICKHOUSE_URL", clickhouse.url)
        monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:9")

        def answer(
            tick="SKIPPED", state="RUNNING", *, age=0.0, load_error=None, beat=0.0, causes=()
        ):
            now = time.time()
            chain = [{"error": {"message": cause}} for cause in causes]
            error = {"message": "boom\nat line 1", "errorChain": chain}
            tick_ = {"status": tick, "timestamp": now - age}
            tick_["error"] = error if tick == "FAILURE" else None
            sensor = {"name": "iscp_runner", "minIntervalSeconds": 10}
            sensor["sensorState"] = {"status": state, "ticks": [tick_]}
            location = load_error or {"repositories": [{"sensors": [sensor]}]}
            entry = {"name": "mine", "locationOrLoadError": location}
            heartbeat = {"daemonType": "SENSOR", "required": True, "lastHeartbeatTime": now - beat}
            data = {
                "instance": {"daemonHealth": {"allDaemonStatuses": [heartbeat]}},
                "workspaceOrError": {"locationEntries": [entry]},
            }
            webserver.told = (200, {}, json.dumps({"data": data}).encode())

        answer.webserver, answer.clickhouse = webserver, clickhouse
        answer()
        yield answer


def read_findings(iscp, *options):
    return iscp.read_json("health", *options, status=1)


def find_problems(iscp, *options):
    """Return the findings with a problem by their service, except Spark's, which does not run."""
    findings = [finding for finding in read_findings(iscp, *options) if finding["problem"]]
    by_service = {finding["what"].split()[0]: finding for finding in findings}
    assert by_service.pop("spark")["code"] == UnavailableError.code
    return by_service


@pytest.mark.parametrize(
    ("answer", "values"),
    [
        ({"tick": "FAILURE"}, {"sensor": ["failed", "boom at line 1"]}),
        (
            {"tick": "FAILURE", "causes": ["ReadError: no lake\nhere", "OSError: no disk\n"]},
            {"sensor": ["failed", "ReadError: no lake here (caused by OSError: no disk)"]},
        ),
        (
            {"tick": "FAILURE", "causes": ["ReadError: " + "x" * 2_000]},
            {"sensor": [f"ReadError: {'x' * 489}…"]},
        ),
        ({"state": "STOPPED"}, {"sensor": ["off"]}),
        ({"age": 3_600}, {"sensor": ["iscp_runner", "3600 s"]}),
        ({"beat": 3_600}, {"daemon": ["heartbeat", "sensor"]}),
        (
            {
                "load_error": {
                    "message": "boom",
                    "errorChain": [{"error": {"message": "not\nreached"}}],
                }
            },
            {"code": ["not reached"], "sensor": ["loaded"]},
        ),
    ],
)
def test_health_says_what_is_wrong_with_dagster(iscp, dagster, answer, values):
    dagster(**answer)
    problems = find_problems(iscp)
    assert problems.keys() == values.keys()
    for service, finding in problems.items():
        assert_names(finding["problem"], *values[service])


def test_health_says_which_service_does_not_answer(iscp, dagster, monkeypatch):
    dagster.clickhouse.told = (500, {}, b"on fire")
    dagster.webserver.told = (502, {}, b"")
    problems = find_problems(iscp)
    assert_names(problems["clickhouse"]["problem"], 500, "on fire")
    assert_names(problems["dagster"]["problem"], 502)
    monkeypatch.delenv("DAGSTER_URL")
    monkeypatch.delenv("CLICKHOUSE_URL")
    problems = find_problems(iscp)
    assert problems["CLICKHOUSE_URL"]["code"] == ConfigError.code
    assert problems["dagster"]["code"] == ConfigError.code
    assert_names(problems["dagster"]["then"], "DAGSTER_URL")


def test_health_tells_jobs_in_error_and_what_is_behind(iscp, jobs, source, clock, dagster):
    def fail_job(tenant, message):
        fail(jobs.deployment.log, begin(jobs, source, tenant), 10_200, message)

    clock.now = datetime.now(timezone.utc)
    iscp.read_text(*REGISTER, "eu")
    assert find_problems(iscp) == {}
    clock.now += timedelta(hours=1)
    finding = find_problems(iscp)["table"]
    assert_names(finding["problem"], "behind", NAME, "tenant eu")
    assert re.search(r"\b3,6\d\d s", finding["problem"])
    assert finding["then"] == f"`iscp job status {NAME} --tenant eu`"
    assert find_problems(iscp, "--max-lag", "7200") == {}
    iscp.read_text("job", "pause", NAME, "--tenant", "eu")
    assert find_problems(iscp) == {}
    iscp.read_text("job", "resume", NAME, "--tenant", "eu")
    fail_job("eu", "gone")
    problems = find_problems(iscp)
    assert problems.keys() == {"job"}
    finding = problems["job"]
    assert (finding["what"], finding["code"]) == (f"job {NAME}", 10_200)
    assert_names(finding["problem"], "tenant eu: gone")
    assert_names(finding["then"], "cause", f"`iscp job repair {NAME} --tenant eu`")
    text = f"{finding['what']}: {finding['problem']} (code 10200)\n  next: {finding['then']}\n"
    assert text in iscp.read_failure("health")
    notes = {finding["what"]: finding["note"] for finding in read_findings(iscp)}
    assert_names(notes[f"table {TABLE}"], "in error", "mirror (1 tenant)")
    iscp.read_text(*REGISTER, TENANT)
    fail_job(TENANT, "gone")
    finding = find_problems(iscp)["job"]
    assert_names(finding["problem"], f"tenants {TENANTS}: gone")
    assert_names(finding["then"], f"`iscp job repair {NAME} --tenant '*'`")
    iscp.read_json(*REGISTER, "zz")
    fail_job("zz", "another row")
    problems = find_problems(iscp)
    assert problems.keys() == {"job"}
    whose = f"tenants {TENANTS}, zz: {TENANTS}: gone; zz: another row"
    assert_names(problems["job"]["problem"], whose)


def test_health_tells_a_table_that_no_job_can_ever_follow(iscp, source, dagster):
    shutil.rmtree(source.path)
    write_deltalake(source.path, pa.table({"id": [1], "region": ["eu"], "doc": ["x"]}))
    finding = find_problems(iscp)["table"]
    assert finding["code"] == SourceError.code
    assert_names(finding["problem"], "'region'", "partition")


def test_health_tells_what_is_left_out_of_the_location(
    iscp, jobs, source, dagster, tmp_path, monkeypatch
):
    lines = f"""
from iscp_dagster import Mirror, SourceTable, Trigger, View
lines = SourceTable("{TABLE}", key="id", tenant="region", path={source.path!r},
    indexes=[Mirror(columns=["doc"])])
clash = SourceTable("{TABLE}_mirror", key="id")
lost = View("lost", of=SourceTable("warehouse.lost", key="id"), where="id > 1")
"""
    (tmp_path / "left_out_here.py").write_text(lines)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ISCP_ASSETS", "left_out_here")
    jobs.sources[:] = declared_in(os.environ)
    iscp.read_text(*REGISTER, "eu")
    problems = find_problems(iscp)
    assert problems.keys() == {"table", "declarations"}
    assert problems["table"]["code"] == ClashError.code
    assert_names(problems["table"]["problem"], "left_out_here.py", NAME, f"'{TABLE}_mirror'")
    assert_names(problems["declarations"]["problem"], "'warehouse.lost'")
    assert_names(iscp("job", "list")[1], f"{TABLE}: left_out_here.py")
    shutil.rmtree(source.path)
    finding = find_problems(iscp)["table"]
    assert finding["what"] == f"table {TABLE}"
    assert_names(finding["problem"], "left_out_here.py")


def test_health_finds_nothing_wrong_where_graphql_leaves_a_column_out(iscp, dagster, monkeypatch):
    left_out = catalog.ServedCatalog(notes=("shop_t is without its column 'grüße': taken.",))
    loading = "iscp_dagster.serve.web.server.LazyCatalogLoader.__call__"
    monkeypatch.setattr(loading, lambda _: left_out)
    assert find_problems(iscp) == {}
    lines = iscp.read_failure("health").splitlines()
    assert {"jobs: ok", f"graphql: {left_out.notes[0]}"} <= {*lines}


@pytest.mark.parametrize(
    ("code", "message", "verb"),
    [
        (10_300, f"Rebuild it (`iscp job rebuild {NAME} --tenant '*'`).", ""),
        (10_300, "Rebuild the job (`iscp job rebuild`).", "rebuild"),
        (10_300, "Somebody has `iscp job list`.", "repair"),
        (10_220, "gone", "register"),
        (10_250, "gone", "rebuild"),
    ],
)
def test_health_and_wait_say_the_remedy_once(
    iscp, jobs, source, dagster, registered, code, message, verb
):
    fail(jobs.deployment.log, begin(jobs, source), code, message)
    finding = find_problems(iscp)["job"]
    assert finding["problem"].endswith(message)
    assert finding["then"].endswith(f"`iscp job {verb} {NAME} --tenant eu`" if verb else "")
    wait = " ".join(iscp.read_failure("wait", TABLE, "--tenant", "eu").split())
    assert wait.count("iscp job re") == message.count("iscp job re") + bool(verb)
    assert ["cause" in text for text in (finding["then"], wait)] == [verb == "repair"] * 2


def test_health_tells_what_nobody_expected_of_a_table(iscp, dagster, monkeypatch):
    monkeypatch.setattr("iscp_dagster.cli.checkup.read_positions", lambda *_: 1 / 0)
    problem = find_problems(iscp)["table"]["problem"]
    assert_names(problem, "ZeroDivisionError")
    assert re.search(r"\(test_cli_jobs\.py:\d+\)\.$", problem)


def test_no_message_repairs_all_tenants_for_one_that_is_called_so():
    command = suggest_command("repair", ["*"], JobID(db="d", table="t", job="j"))
    assert_names(command, "Dagster", "`*`")


def test_a_table_that_is_not_there_is_wrong_while_its_indexes_serve_rows(
    iscp, jobs, source, dagster
):
    shutil.rmtree(source.path)
    assert find_problems(iscp) == {}
    assert f"table {TABLE}: {NO_TABLE}" in iscp.read_failure("health").splitlines()
    commit(source, "eu", doc="x")
    iscp.read_json(*REGISTER, "eu")
    finish(jobs, source)
    shutil.rmtree(source.path)
    finding = find_problems(iscp)["table"]
    assert finding["code"] == NoTableError.code
    assert_names(finding["problem"], "serve", source.path)
    assert_names(finding["then"], "iscp job unregister")
