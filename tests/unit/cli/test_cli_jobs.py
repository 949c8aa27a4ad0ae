"""`iscp job`, `wait`, `usage` and `health` over a Delta table and an ISCP log in memory."""

import json
import os
import re
import shutil
import subprocess
import sys
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
from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.joblog.history import Usage
from iscp_dagster.model.declared.linking.attach import attach_to_tables
from iscp_dagster.model.errors import ConfigError, TableGoneError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.moment import START
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.declared import make_job_spec
from iscp_dagster.serve import catalog
from support.clients.cli import found, printed, refused, run_command
from support.jobs import one_table
from support.jobs.log_rows import complete, fail, log_in_memory
from support.jobs.one_table import Clock, commit, in_memory, name_dead_store, name_deployment
from support.paths import ROOT
from support.services.scripted_http import answering_server

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=timezone.utc)
MIRROR = JobID(db="warehouse", table="order_lines", job="mirror")
TENANT = "clickhouse-connect-and-more"
RUN = "0d5b7c1e-4f0a-4c58-9a3e-2f1b6c7d8e9f"


begin = partial(one_table.begin, run=RUN)
finish = partial(one_table.finish, run=RUN)


@pytest.fixture
def clock():
    return Clock(NOW)


@pytest.fixture
def source(tmp_path):
    source = SourceTable(
        "warehouse.order_lines",
        key="id",
        tenant="region",
        path=str(tmp_path / "order_lines"),
        indexes=[Mirror(columns=["doc"], priority=2), FullText("doc", auto_register=False)],
    )
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
def iscp(jobs, capsys, monkeypatch):
    """Give a function that runs a command line and returns exit code and output."""

    return partial(run_command, capsys, monkeypatch)


NAME = "warehouse.order_lines/mirror"


def test_a_declared_index_is_registered_as_declared(iscp, jobs, source):
    said = printed(iscp, "job", "register", NAME, "--tenant", "eu")
    assert said == f"{NAME}, tenant eu: registered\n"
    assert jobs.get_job("eu", MIRROR).spec == make_job_spec(source, source.get_index("mirror"))
    assert jobs.get_job("eu", MIRROR).priority == 2


def test_registering_what_exists_says_so_and_is_no_error(iscp):
    place = ("job", "register", NAME, "--tenant", "eu")
    printed(iscp, *place, "--trigger", "greedy")
    for same in ((), ("--trigger", "greedy"), ("--priority", "2")):
        assert printed(iscp, *place, *same).strip() == f"{NAME}, tenant eu: already exists"
    assert found(iscp, *place) == [{"tenant": "eu", "job": NAME, "created": False}]


def test_registering_what_exists_with_another_specification_is_exit_code_1(iscp, jobs):
    place = ("job", "register", NAME, "--tenant", "eu")
    printed(iscp, *place)
    asked = (*place, "--trigger", "periodic", "--interval", "1m", "--priority", "5")
    said = refused(iscp, *asked)
    assert (
        "tenant eu: already exists, with another specification (trigger: default, not periodic; "
        'schedule: {}, not {"interval": "1m"}; priority: 2, not 5); change it with '
        f"`iscp job update {NAME} --tenant eu`"
    ) in " ".join(said.split())
    code, said = iscp(*asked, "--json")
    (row,) = json.loads(said)
    assert (code, row["created"]) == (1, False)
    assert "trigger: default, not periodic" in row["note"]
    assert jobs.get_job("eu", MIRROR).spec.trigger.job_type == "default"


def test_registering_for_all_tells_of_the_tenant_that_keeps_another_specification(
    iscp, jobs, source
):
    printed(iscp, "job", "register", NAME, "--tenant", "eu", "--priority", "9")
    said = refused(iscp, "job", "register", NAME, "--tenant", "*", "--priority", "5")
    assert "every tenant: registered; for tenant 'eu' it already exists, with another spec" in said
    assert "(priority: 9, not 5)" in said
    printed(iscp, "job", "update", NAME, "--tenant", "*", "--priority", "5")
    printed(iscp, "job", "register", NAME, "--tenant", "*", "--priority", "5")
    printed(iscp, "job", "unregister", NAME, "--tenant", "eu")
    printed(iscp, "job", "unregister", NAME, "--tenant", TENANT)
    said = refused(iscp, "job", "register", NAME, "--tenant", "*", "--priority", "4")
    assert "for later tenants it already exists" in said


def test_registering_a_tenant_of_whom_the_table_holds_nothing_says_so(iscp, jobs, source):
    code, said = iscp("job", "register", NAME, "--tenant", "us")
    assert code == 0
    assert said == f"{NAME}, tenant us: registered; the table holds no rows of tenant 'us' yet\n"
    (row,) = found(iscp, "job", "register", NAME, "--tenant", "de")
    assert (row["created"], row["note"]) == (True, "the table holds no rows of tenant 'de' yet")
    assert "yet" not in printed(iscp, "job", "register", NAME, "--tenant", "eu")


class Words:
    """A user's own consumer."""

    def __init__(self, source, info):
        pass

    def consume(self, retriever):
        pass


def test_every_option_reaches_the_spec(iscp, jobs):
    name = "warehouse.order_lines/words"
    options = ["--type", f"{__name__}:Words", "--columns", "doc, id", "--trigger", "periodic"]
    options += ["--interval", "10s", "--share", "--independent", "--priority", "7"]
    options += ["--max-versions", "3", "--max-bytes", "4", "--tenant", "eu"]
    options += ["--option", 'text=["doc"]', "--option", "tokenizer=ngrams(3)"]
    printed(iscp, "job", "register", name, *options)
    assert jobs.get_job("eu", parse_job_id(name)).spec.to_json() == {
        "trigger": {
            "job_type": "periodic",
            "schedule": {"interval": "10s", "share": True},
            "independent": True,
        },
        "detail": {
            "priority": 7,
            "max_versions": 3,
            "max_bytes": 4,
            "consumer": {
                "type": f"{__name__}:Words",
                "db": "warehouse",
                "table": "order_lines",
                "job": "words",
                "columns": ["doc", "id"],
                "options": {"text": ["doc"], "tokenizer": "ngrams(3)"},
                "generation": 0,
            },
        },
    }


PERIODIC = ("--trigger", "periodic", "--interval")


@pytest.mark.parametrize("trigger", [(), ("--trigger", "greedy")])
@pytest.mark.parametrize("asked", [("--interval", "1h"), ("--share",), ("--no-share",)])
def test_a_trigger_without_a_schedule_is_given_none(iscp, jobs, trigger, asked):
    place = ("job", "register", NAME, "--tenant", "eu", *trigger)
    code, said = iscp(*place, *asked)
    assert (code, jobs.list_jobs()) == (1, [])
    assert f"Job {NAME}: The trigger '{trigger[-1] if trigger else 'default'}'" in said
    assert "has no schedule" in said
    printed(iscp, *place)
    code, again = iscp("job", "update", NAME, "--tenant", "eu", *asked)
    assert (code, again) == (1, said)


def test_an_interval_is_above_zero(iscp, jobs):
    printed(iscp, "job", "register", NAME, "--tenant", "eu", *PERIODIC, "1h")
    for verb in ("register", "update"):
        said = refused(iscp, "job", verb, NAME, "--tenant", "eu", *PERIODIC, "0s")
        assert "interval '0s' is not above 0" in said
    assert dict(jobs.get_job("eu", MIRROR).spec.trigger.schedule) == {"interval": "1h"}


def night(jobs, latest, now):
    """A user's own trigger."""
    return ()


@pytest.mark.parametrize(
    ("before", "asked", "after"),
    [
        ((), (*PERIODIC, "5m"), ("periodic", {"interval": "5m"})),
        (
            (*PERIODIC, "1h", "--share"),
            ("--interval", "5m"),
            ("periodic", {"interval": "5m", "share": True}),
        ),
        (
            (*PERIODIC, "1h"),
            ("--share",),
            ("periodic", {"interval": "1h", "share": True}),
        ),
        (
            ("--trigger", f"{__name__}:night", "--interval", "1h"),
            ("--interval", "5m", "--share"),
            (f"{__name__}:night", {"interval": "5m", "share": True}),
        ),
        ((*PERIODIC, "1h"), ("--trigger", "greedy"), ("greedy", {})),
        (
            ("--trigger", f"{__name__}:night", "--interval", "1h"),
            ("--trigger", "periodic", "--interval", "5m"),
            ("periodic", {"interval": "5m"}),
        ),
    ],
)
def test_what_an_update_leaves_out_of_a_trigger_stays(iscp, jobs, before, asked, after):
    iscp("job", "register", NAME, "--tenant", "eu", *before)
    assert "eu: updated" in printed(iscp, "job", "update", NAME, "--tenant", "eu", *asked)
    trigger = jobs.get_job("eu", MIRROR).spec.trigger
    assert (trigger.job_type, dict(trigger.schedule)) == after


def test_jobs_that_an_interval_would_leave_with_different_triggers_are_not_given_it(iscp, jobs):
    iscp("job", "register", NAME, "--tenant", "eu", *PERIODIC, "1h", "--share")
    iscp("job", "register", NAME, "--tenant", TENANT)
    for options in (("--interval", "5m"), ("--trigger", "periodic", "--interval", "5m")):
        said = refused(iscp, "job", "update", NAME, "--tenant", "*", *options)
        assert "have different triggers" in said
    whole = (*PERIODIC, "5m", "--no-share")
    printed(iscp, "job", "update", NAME, "--tenant", "*", *whole)
    triggers = [each.spec.trigger for each in jobs.list_jobs()]
    assert {each.job_type for each in triggers} == {"periodic"}
    schedules = [dict(each.schedule) for each in triggers]
    assert schedules == [{"interval": "5m", "share": False}] * 2
    printed(iscp, "job", "update", NAME, "--tenant", "eu", "--trigger", "default")
    printed(iscp, "job", "update", NAME, "--tenant", "*", "--trigger", "greedy")
    assert {each.spec.trigger.job_type for each in jobs.list_jobs()} == {"greedy"}


def test_all_tenants_are_registered_at_once(iscp, jobs):
    printed(iscp, "job", "register", NAME, "--tenant", "*")
    assert [each.key.tenant for each in jobs.list_jobs()] == [TENANT, "eu"]
    assert list(jobs.deployment.log.list_standing()) == [MIRROR]


def test_a_file_registers_many(iscp, jobs, tmp_path):
    file = tmp_path / "jobs.yaml"
    file.write_text(
        f"- {{tenant: eu, job: {NAME}}}\n"
        "- tenant: '*'\n"
        "  job: warehouse.order_lines/copy\n"
        "  spec:\n"
        "    trigger: {job_type: greedy}\n"
        "    detail: {priority: 3, consumer: {type: mirror, columns: [doc]}}\n"
    )
    rows = found(iscp, "job", "register", "--file", file)
    assert [(row["tenant"], row["job"], row["created"]) for row in rows] == [
        ("eu", NAME, True),
        ("*", "warehouse.order_lines/copy", True),
    ]
    copy = jobs.get_job("eu", parse_job_id("warehouse.order_lines/copy")).spec
    assert (copy.trigger.job_type, copy.detail.priority) == ("greedy", 3)
    assert copy.detail.consumer.columns == ("doc",)


def test_a_file_with_a_job_that_its_siblings_contradict_registers_none(iscp, jobs, tmp_path):
    found(iscp, "job", "register", NAME, "--tenant", "eu")
    file = tmp_path / "jobs.yaml"
    file.write_text(
        "- {tenant: us, job: warehouse.order_lines/copy, "
        "spec: {detail: {consumer: {type: mirror}}}}\n"
        f"- {{tenant: us, job: {NAME}, spec: {{detail: {{consumer: {{columns: [doc]}}}}}}}}\n"
    )
    said = refused(iscp, "job", "register", "--file", file)
    assert re.search("entry 2: Index .* has one table for all its tenants", said)
    assert len(jobs.list_jobs()) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"- job: {NAME}\n- job: shop.gone/mirror\n", "entry 2: .*'shop.gone' is not declared"),
        (f"- job: {NAME}\n- {{job: {NAME}, spce: {{}}}}\n", "entry 2: .*unknown field 'spce'"),
        (f"- job: {NAME}\n- tenant: eu\n", "entry 2: .*lacks the field 'job'"),
        (
            f"- job: {NAME}\n- {{job: {NAME}, spec: {{trigger: {{job_type: x}}}}}}\n",
            "entry 2: .*'x'",
        ),
        (
            (
                f"- job: {NAME}\n- {{tenant: eu, job: {NAME}, "
                "spec: {detail: {consumer: {columns: [doc]}}}}\n"
            ),
            "entry 2: .*differs from an earlier entry",
        ),
        (f"job: {NAME}\n", "is not a list"),
        ("- [\n", "is not YAML"),
    ],
)
def test_a_file_with_one_wrong_job_registers_none(iscp, jobs, tmp_path, text, said):
    file = tmp_path / "jobs.yaml"
    file.write_text(text)
    printed_ = refused(iscp, "job", "register", "--file", file)
    assert re.search(said, printed_)
    assert jobs.list_jobs() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["register"], "Name either a job, with its options, or a --file"),
        (
            ["register", NAME, "--file", "x.yaml"],
            "Name either a job, with its options, or a --file",
        ),
        (["register", "--file", "/no/such.yaml"], "/no/such.yaml cannot be read"),
        (
            ["register", "order_lines/mirror"],
            "'order_lines/mirror' is not written database.table/job",
        ),
        (
            ["register", "shop.gone/x"],
            "Job shop.gone/x: Table 'shop.gone' is not declared; there are: warehouse.order",
        ),
        (
            ["register", "warehouse.order_lines/x"],
            "Job warehouse.order_lines/x: warehouse.order_lines declares no index or trigger 'x'",
        ),
        (["register", NAME, "--option", "text"], "'text' is not written name=value"),
        (["update", NAME], "There is nothing to change"),
        (["update", NAME, "--priority", "1"], "no job warehouse.order_lines/mirror of tenant 'def"),
        (["pause", NAME], "There is no job warehouse.order_lines/mirror"),
        (["status", NAME], "There is no job warehouse.order_lines/mirror"),
        *(
            ([verb, "--state", "done"], "'done' is unknown; use one of pending, running, canceled")
            for verb in ("list", "count")
        ),
        *(
            ([verb, wrong], f"There is no job {wrong} of tenant 'default'; its jobs on that table")
            for verb in ("unregister", "rebuild", "repair", "resume")
            for wrong in (NAME, f"{NAME}s")
        ),
        *(
            ([verb, "shop.orders/mirror"], "no table 'shop.orders'; there are: warehouse.order_")
            for verb in ("status", "unregister", "pause", "resume")
        ),
        (
            ["register", NAME[:-6] + "x", "--type", "no.such:Thing"],
            f"Job {NAME[:-6]}x: The consumer type 'no.such:Thing' cannot be imported: No module",
        ),
        (
            ["register", NAME[:-6] + "x", "--type", "json:Thing"],
            "'json:Thing' cannot be imported: module 'json' has no attribute 'Thing'",
        ),
        (
            ["register", NAME[:-6] + "x", "--type", "json:__name__"],
            "'json:__name__' is 'json', which is not callable",
        ),
        (["list", "--table", "orders"], "'orders' is not written database.table, such as docs."),
        (["history", "--since", "soon"], "'soon' is neither a length of time"),
        (["history", NAME + "s"], f"no job '{NAME}s'; there are: {NAME}, warehouse.order_lines/te"),
        (["history", "--tenant", "xx"], f"There is no tenant 'xx'; there are: {TENANT}, eu"),
        (["list", "--table", "shop.orders"], "no table 'shop.orders'; there are: warehouse.order_"),
        (["list", "--tenant", "xx"], "There is no tenant 'xx'"),
        (
            ["register", NAME[:-6] + "words", "--type", "text"],
            f"iscp: Job {NAME[:-6]}words: a text index needs text; give --option text=..., or",
        ),
        (
            ["register", NAME[:-6] + "v", "--type", "vector", "--option", "vector=v"],
            "a vector index needs dimension; give --option dimension=...",
        ),
        (
            ["register", NAME[:-6] + "m", "--type", "text", "--option", "text=7"],
            "text 7 names no column; give the name of one",
        ),
        (["register", NAME, "--option", 'types={"id": "Foo"}'], "no column can be kept as 'Foo'"),
    ],
)
def test_what_is_wrong_is_one_message_and_exit_code_1(iscp, jobs, arguments, said):
    printed_ = refused(iscp, "job", *arguments)
    assert printed_.startswith("iscp: ")
    assert said in printed_
    assert jobs.list_jobs() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stauts"], "No such command 'stauts'. Did you mean 'status'?"),
        (["job", "stauts"], "No such command 'stauts'. Did you mean 'status'?"),
        (["job", "wait"], "No such command 'wait'. Did you mean `iscp wait`?"),
        (["nothing-like-it"], "No such command 'nothing-like-it'."),
        (["wait", "a.b", "--version", "1x"], "'--version': '1x': Input should be a valid integer"),
        (["health", "--max-lag", "x"], "'--max-lag': 'x': Input should be a valid number"),
        (["job", "update", NAME, "--priority", "high"], "'--priority': 'high': Input should be"),
        (["job", "history", "--most", "0"], "'--most': '0': Input should be greater"),
    ],
)
def test_a_mistyped_command_or_value_is_shown_with_what_was_meant(iscp, arguments, said):
    told = refused(iscp, *arguments, status=2)
    assert said in " ".join(told.replace("│", " ").split())


def test_names_like_the_wrong_one_come_first_where_not_all_fit(iscp, jobs, source):
    commit(source, *(f"c{number}" for number in range(30)), "org-98", "org-19")
    elsewhere = JobID(db="warehouse", table="refunds", job="mirror")
    for number in range(20):
        spec = JobSpec(
            detail=IterationDetail(consumer=ConsumerInfo(type="m:N", **asdict(elsewhere)))
        )
        jobs.deployment.log.register(f"org-{200 + number}", elsewhere, "t2", spec)
    said = refused(iscp, "job", "list", "--tenant", "org-198", "--table", source.name)
    among = f"There is no tenant 'org-198'; there are in {source.name}: org-98, org-19, c0, c1, "
    assert among in said
    assert "and 24 more." in said
    said = refused(iscp, "job", "history", NAME, "--tenant", "org-198")
    assert among in said
    said = refused(iscp, "job", "list", "--tenant", "org-222")
    assert "'org-222'; there are: org-2" in said
    said = refused(iscp, "wait", source.name, "--tenant", "org-198")
    assert "its tenants are: org-98, org-19, c0" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["job", "list"], "no jobs"), (["job", "history"], "no history"), (["usage"], "no usage")],
)
def test_nothing_is_said_in_words(iscp, arguments, said):
    assert iscp(*arguments) == (0, f"{said}\n")
    assert found(iscp, *arguments) == []


def test_a_dead_letter_s_index_is_called_an_index(iscp, monkeypatch):
    monkeypatch.setattr("iscp_dagster.upkeep.dead_letters.find_letters", lambda *_, **__: [])
    for index, said in [
        (
            "nope",
            "The index 'nope' is not written database.table/index, such as docs.symbols/mirror",
        ),
        (f"{NAME}s", f"There is no index '{NAME}s'; there are: {NAME}, "),
    ]:
        told = refused(iscp, "dlq", "list", "--index", index)
        assert said in told


def test_unregistering_is_no_error_when_it_is_done(iscp, jobs):
    found(iscp, "job", "register", NAME)
    assert "mirror, tenant default: unregistered" in printed(iscp, "job", "unregister", NAME)
    assert jobs.list_jobs() == []
    assert found(iscp, "job", "unregister", NAME) == {
        "tenant": "default",
        "job": NAME,
        "changed": False,
    }


def test_an_update_changes_what_is_named_and_interrupts_when_asked(iscp, jobs, source, canceled):
    printed(iscp, "job", "register", NAME, "--tenant", "eu", "--independent")
    begin(jobs, source)
    said = printed(iscp, "job", "update", NAME, "--tenant", "eu", "--priority", "9")
    assert "mirror, tenant eu: updated" in said
    assert (jobs.get_job("eu", MIRROR).state, canceled) == (JobState.RUNNING, [])
    change = ["--no-independent", "--interrupt"]
    assert found(iscp, "job", "update", NAME, "--tenant", "eu", *change)["changed"] is True
    job = jobs.get_job("eu", MIRROR)
    assert (job.priority, job.spec.trigger.independent) == (9, False)
    assert (job.state, canceled) == (JobState.CANCELED, [{RUN}])


def test_an_interrupting_update_says_what_it_interrupted(iscp, jobs, source):
    printed(iscp, "job", "register", NAME, "--tenant", "eu", "--priority", "5")
    interrupt = ("job", "update", NAME, "--tenant", "eu", "--interrupt")
    begin(jobs, source)
    said = printed(iscp, *interrupt)
    assert said == f"{NAME}, tenant eu: unchanged; 1 job interrupted\n"
    said = printed(iscp, *interrupt, "--priority", "6")
    assert said == f"{NAME}, tenant eu: updated; no iteration was under way\n"
    said = printed(iscp, *interrupt, "--priority", "6")
    assert said == f"{NAME}, tenant eu: unchanged; no iteration was under way\n"
    one_table.begin(jobs, source, run="another run")
    assert found(iscp, *interrupt, "--priority", "7") == {
        "tenant": "eu",
        "job": NAME,
        "changed": True,
        "interrupted": 1,
    }


def test_pausing_and_resuming_say_whether_anything_changed(iscp, jobs):
    found(iscp, "job", "register", NAME)
    assert "default: paused" in printed(iscp, "job", "pause", NAME)
    assert "default: already paused" in printed(iscp, "job", "pause", NAME)
    assert jobs.get_job("default", MIRROR).paused_at == NOW
    assert found(iscp, "job", "resume", NAME)["changed"] is True
    assert "default: not paused" in printed(iscp, "job", "resume", NAME)


def test_rebuilding_makes_another_generation_for_all_and_starts_one_over_in_its_place(
    iscp, jobs, source, clock
):
    for tenant in (TENANT, "eu"):
        printed(iscp, "job", "register", NAME, "--tenant", tenant)
    finish(jobs, source, clock=clock)
    assert "every tenant: will be rebuilt" in printed(iscp, "job", "rebuild", NAME, "--tenant", "*")
    held = jobs.list_jobs()
    assert {(j.spec.detail.consumer.generation, j.watermark) for j in held} == {(1, START)}
    finish(jobs, source, clock=clock)
    assert "eu: will be rebuilt" in printed(iscp, "job", "rebuild", NAME, "--tenant", "eu")
    again = jobs.get_job("eu", MIRROR)
    assert (again.spec.detail.consumer.generation, again.watermark) == (1, START)
    assert found(iscp, "job", "rebuild", NAME, "--tenant", "eu")["changed"] is True


def test_the_status_of_what_is_building_has_rows_done_of_rows_to_do(
    iscp, jobs, source, monkeypatch
):
    printed(iscp, "job", "register", NAME, "--tenant", "eu")
    # The first number comes from ClickHouse, which no unit test has.
    monkeypatch.setattr(IndexStore, "count_staged", lambda store, tenant: len(tenant))
    status = ["job", "status", NAME, "--tenant", "eu"]
    waits = "building, waits for its trigger (default)"
    assert facts(printed(iscp, *status))["state"] == f"{waits}, 2 rows of 1"
    (row,) = found(iscp, *status)
    assert (row["building"], row["rows_done"], row["rows_to_do"]) == (True, 2, 1)


def test_an_update_that_only_ends_an_error_says_that_it_changed_something(iscp, jobs, source):
    printed(iscp, "job", "register", NAME, "--tenant", "eu", "--priority", "5")
    fail(jobs.deployment.log, begin(jobs, source), 10_300, "no such column")
    update = ["job", "update", NAME, "--tenant", "eu", "--priority", "5"]
    assert printed(iscp, *update) == f"{NAME}, tenant eu: unchanged, planned again\n"
    assert printed(iscp, *update) == f"{NAME}, tenant eu: unchanged\n"


def test_the_status_tells_what_readers_see_of_an_index_that_is_built_beside(jobs, iscp, capsys):
    found(iscp, "job", "register", NAME)
    job_show.print_status(jobs.list_jobs(), {}, {}, {MIRROR})
    told = capsys.readouterr().out
    assert re.search("readers see  *the previous generation, until every tenant is built", told)


def test_repairing_plans_a_job_in_error_again(iscp, jobs, source):
    printed(iscp, "job", "register", NAME, "--tenant", "eu")
    fail(jobs.deployment.log, begin(jobs, source), 10_300, "no such type")
    assert "eu: planned again" in printed(iscp, "job", "repair", NAME, "--tenant", "eu")
    assert jobs.get_job("eu", MIRROR).state is JobState.COMPLETED
    assert found(iscp, "job", "repair", NAME, "--tenant", "eu")["changed"] is False


def facts(said):
    pairs = [line.split(maxsplit=1) for line in said.splitlines() if line.strip()]
    return {pair[0]: (pair[1].strip() if len(pair) > 1 else "") for pair in pairs}


def test_a_job_is_building_until_its_first_iteration_has_completed(iscp, jobs, source, clock):
    status = ["job", "status", NAME, "--tenant", "eu"]
    printed(iscp, "job", "register", NAME, "--tenant", "eu")
    waits = "building, waits for its trigger (default)"
    assert facts(printed(iscp, *status))["state"] == waits
    claim = begin(jobs, source)
    fail(jobs.deployment.log, claim, 1_100, "no answer")
    assert facts(printed(iscp, *status))["state"] == "building, waits to be tried again"
    jobs.pause_job("eu", MIRROR)
    assert facts(printed(iscp, *status))["state"] == "building, paused"
    jobs.resume_job("eu", MIRROR)
    claim = begin(jobs, source)
    assert facts(printed(iscp, *status))["state"] == "building"
    (now,) = found(iscp, *status)
    assert (now["state"], now["building"], now["watermark"]) == ("running", True, None)
    complete(jobs.deployment.log, claim, claim.range.to, {})
    jobs.pause_job("eu", MIRROR)
    assert facts(printed(iscp, *status))["state"] == "completed, paused"
    (now,) = found(iscp, *status)
    assert (now["building"], now["paused"], now["watermark"]["version"]) == (False, True, 0)


def test_a_job_that_failed_before_it_was_built_is_in_error(iscp, jobs, source):
    printed(iscp, "job", "register", NAME, "--tenant", "eu")
    fail(jobs.deployment.log, begin(jobs, source), 10_300, "no such [type]")
    shown_ = facts(printed(iscp, "job", "status", NAME, "--tenant", "eu"))
    assert (shown_["state"], shown_["code"]) == ("error", "10300")
    assert shown_["message"] == "no such [type]"


def test_the_status_shows_the_watermark_the_lag_and_the_latest_iteration(iscp, jobs, source, clock):
    printed(iscp, "job", "register", NAME, "--tenant", "eu")
    finish(jobs, source, clock=clock, inserted=1_234)
    commit(source, "eu")
    log = jobs.deployment.make_delta_log(source)
    lag = (log.get_latest_moment().micros - log.get_moment(0).micros) / 1e6
    said = printed(iscp, "job", "status", NAME, "--tenant", "eu")
    shown_ = facts(said)
    assert shown_["watermark"] == f"0 of {log.get_moment(0).at:%Y-%m-%d %H:%M:%S} UTC"
    assert shown_["lag"] == f"{lag:,.1f} s"
    assert "last range  all to 0" in said
    assert shown_["started"] == "2026-03-04 05:06:07 UTC"
    assert shown_["ended"] == "2026-03-04 05:06:10 UTC"
    assert (shown_["code"], shown_["counts"]) == ("0", "inserted 1,234")
    (row,) = found(iscp, "job", "status", NAME, "--tenant", "eu")
    assert (row["lag"], row["status"]["counts"]) == (lag, {"inserted": 1_234})
    assert row["status"]["to"] == {"version": 0, "at": log.get_moment(0).at.isoformat()}


def test_the_status_of_all_tenants_is_shown_at_once(iscp, jobs):
    printed(iscp, "job", "register", NAME, "--tenant", "*")
    rows = found(iscp, "job", "status", NAME, "--tenant", "*")
    assert [row["tenant"] for row in rows] == [TENANT, "eu"]
    said = printed(iscp, "job", "status", NAME, "--tenant", "*")
    assert said.splitlines()[0] == "2 jobs: 2 building"
    assert [line.split()[1] for line in said.splitlines() if line.startswith("state")] == [
        "building,",
        "building,",
    ]
    said = printed(iscp, "job", "status", NAME, "--limit", 1)
    assert said.count("watermark") == 1
    assert "1 of 2 are shown; see --limit, --tenant" in said
    assert len(found(iscp, "job", "status", NAME)) == 2


def test_the_status_of_a_table_that_cannot_be_read_has_no_lag(iscp, jobs, source):
    printed(iscp, "job", "register", NAME, "--tenant", "eu")
    gone = replace(source, path="/no/such/table")
    jobs.sources[:] = [gone]
    (row,) = found(iscp, "job", "status", NAME, "--tenant", "eu")
    assert row["lag"] is None
    assert facts(printed(iscp, "job", "status", NAME, "--tenant", "eu"))["lag"].startswith("unkn")


def test_jobs_are_listed_by_tenant_table_and_state(iscp, jobs, source):
    printed(iscp, "job", "register", NAME, "--tenant", "*")
    begin(jobs, source)
    said = printed(iscp, "job", "list")
    counts, heading, second, *lines = said.splitlines()
    assert counts == "2 jobs: 2 building; 1 standing registration (*)"
    assert heading.split() == ["job", "state", "version", "type", "code"]
    assert second.split() == ["tenant", "lag", "trigger"]
    place = next(number for number, line in enumerate(lines) if line.startswith("eu "))
    assert lines[place - 1].split() == [NAME, "building", "mirror"]
    assert lines[place].split() == ["eu", "default"]
    rows = found(iscp, "job", "list", "--state", "running", "--table", "warehouse.order_lines")
    assert [(row["tenant"], row["job"]) for row in rows] == [("eu", NAME)]
    assert found(iscp, "job", "list", "--state", "error") == []
    assert "building, waits" in said
    for verb in ("list", "count"):
        building = found(iscp, "job", verb, "--state", "building")
        assert [row["tenant"] for row in building] == [TENANT, "eu"]
    finish(jobs, source, TENANT)
    building = found(iscp, "job", "list", "--state", "building")
    assert [row["tenant"] for row in building] == ["eu"]


def test_the_list_has_the_lag(iscp, jobs, source, clock):
    printed(iscp, "job", "register", NAME, "--tenant", "*")
    finish(jobs, source, clock=clock)
    commit(source, "eu")
    log = jobs.deployment.make_delta_log(source)
    lag = (log.get_moment(1).micros - log.get_moment(0).micros) / 1e6
    lines = printed(iscp, "job", "list").splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("eu "))
    assert lines[place - 1].split()[2] == "0"
    assert lines[place].split()[1:3] == [f"{lag:,.1f}", "s"]
    listed = found(iscp, "job", "list", "--tenant", "eu")
    listed += found(iscp, "job", "list", "--tenant", TENANT)
    rows = {row["tenant"]: row["lag"] for row in listed}
    assert rows == {"eu": lag, TENANT: None}


def test_a_job_s_status_is_that_of_all_tenants_unless_one_is_named(iscp, jobs):
    printed(iscp, "job", "register", NAME, "--tenant", "*")
    assert [row["tenant"] for row in found(iscp, "job", "status", NAME)] == [TENANT, "eu"]
    said = refused(iscp, "job", "pause", NAME)
    assert f"of tenant 'default'; its tenants are: {TENANT}, eu. Name one with --tenant" in said


def test_the_shell_completes_commands_and_their_options(iscp, monkeypatch):
    monkeypatch.setenv("_ISCP_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_CWORD", "2")
    for words, wanted in {
        "./iscp job re": ["register", "resume", "repair", "rebuild"],
        "iscp verify --": ["--tenant", "--index", "--differs", "--limit", "--json", "--help"],
    }.items():
        monkeypatch.setenv("COMP_WORDS", words)
        assert iscp()[1].split() == wanted


def test_the_version_is_that_of_the_package(iscp):
    assert printed(iscp, "--version") == f"iscp {version('iscp_dagster')}\n"


def test_what_is_wrong_with_the_tables_of_the_jobs_is_listed_with_them(iscp, jobs, source):
    printed(iscp, "job", "register", NAME, "--tenant", "eu")
    assert source.name + ": " not in iscp("job", "list")[1]
    commit(source, None)
    assert f"{source.name}: 1 row without a tenant" in iscp("job", "list")[1]
    shutil.rmtree(source.path)
    assert f"{source.name}: There is no Delta table at" in iscp("job", "list")[1]


def test_what_is_registered_for_every_tenant_is_listed_first(iscp, jobs, source):
    printed(iscp, "job", "register", NAME, "--tenant", "*", "--trigger", "greedy")
    _, _, _, first, second, *_ = printed(iscp, "job", "list").splitlines()
    assert first.split()[1:] == ["mirror"]
    assert second.split() == ["*", "greedy"]
    standing, *rows = found(iscp, "job", "list", "--table", "warehouse.order_lines")
    assert (standing["tenant"], standing["job"], standing["state"]) == ("*", NAME, None)
    assert standing["spec"]["trigger"]["job_type"] == "greedy"
    assert None not in {row["state"] for row in rows}
    for narrowed in (("--tenant", "eu"), ("--state", "completed")):
        assert "*" not in {row["tenant"] for row in found(iscp, "job", "list", *narrowed)}


def test_a_declared_trigger_is_registered_shown_and_listed_as_an_index_is(iscp, jobs, source):
    view = View("big", of=source, where="id > 3", auto_register=False)
    large = Trigger("large", on=view, match="id > 7", priority=5, auto_register=False)
    jobs.sources[:] = attach_to_tables([source], [view], [large])
    for name in ("big", "large"):
        printed(iscp, "job", "register", f"warehouse.order_lines/{name}", "--tenant", "eu")
    shown_ = facts(printed(iscp, "job", "status", "warehouse.order_lines/large", "--tenant", "eu"))
    assert (shown_["type"], shown_["priority"]) == ("event trigger", "5")
    words = printed(iscp, "job", "list").split()
    assert (words.count("changes"), words.count("trigger")) == (1, 2), "one of them is the heading"
    said = {
        ("register", "--type", "mirror"): "a trigger of that name is declared, and the job would",
        ("register", "--columns", "id"): "a trigger's columns and options are those of its decl",
    }
    for (verb, *options), told in said.items():
        code, out = iscp("job", verb, "warehouse.order_lines/large", "--tenant", TENANT, *options)
        assert (code, told in " ".join(out.split())) == (1, True), out
    asked = ("register", "warehouse.order_lines/other", "--tenant", "eu", "--type", "trigger")
    out = refused(iscp, "job", *asked)
    assert "no trigger of that name is declared on the table or its views (there are: large)" in out


def test_jobs_are_counted_by_state_and_those_of_a_state_listed(iscp, jobs, source):
    printed(iscp, "job", "register", NAME, "--tenant", "*")
    fail(jobs.deployment.log, begin(jobs, source), 10_300, "a long message, " * 20)
    assert found(iscp, "job", "count") == {
        "pending": 0,
        "running": 0,
        "canceled": 0,
        "error": 1,
        "completed": 1,
    }
    assert ["error", "1"] in [line.split() for line in printed(iscp, "job", "count").splitlines()]
    said = printed(iscp, "job", "count", "--state", "error")
    assert "10300" in said
    assert said.startswith("1 job\n")
    (row,) = found(iscp, "job", "count", "--state", "error")
    assert (row["tenant"], row["job"], row["status"]["code"]) == ("eu", NAME, 10_300)


MANY = [f"tenant {number:03}" for number in range(120)]


@pytest.fixture
def many(iscp, jobs, source):
    """Register jobs of 122 tenants, the last in error."""
    commit(source, *MANY)
    printed(iscp, "job", "register", NAME, "--tenant", "*")
    fail(jobs.deployment.log, begin(jobs, source, MANY[-1]), 10_300, "a long message, " * 20)


def test_a_long_list_begins_with_counts_and_what_is_in_error(iscp, many):
    counts, *lines = printed(iscp, "job", "list").splitlines()
    assert counts == "122 jobs: 1 error, 121 building; 1 standing registration (*)"
    rows = [line for line in lines if line.startswith("warehouse.order")]
    assert lines[3].startswith("*")
    assert ("error" in rows[1], MANY[-1] in lines[5]) == (True, True)
    assert len([line for line in rows if "building" in line]) == 99
    assert lines[-1] == "100 of 122 are shown; see --limit, --state, --tenant, --table."
    assert len(found(iscp, "job", "list")) == 123
    assert len(found(iscp, "job", "list", "--limit", 3)) == 4
    assert printed(iscp, "job", "list", "--state", "error").startswith("1 job: 1 error\n")
    assert "shown" not in printed(iscp, "job", "list", "--limit", 122)


def test_lists_are_one_line_a_row_for_whoever_is_no_terminal(iscp, jobs, many, piped):
    lists = {
        ("job", "list"): 103 + 1,
        ("job", "count", "--state", "error"): 2 + 1,
        ("job", "history"): 100 + 1,
        ("usage",): 2 + 1,
    }
    for arguments, number in lists.items():
        code, said = iscp(*arguments)
        assert code == 0, said
        assert len(said.splitlines()) == number, said
    _, _, row = iscp("job", "count", "--state", "error")[1].splitlines()
    assert ("a long message, " * 20).strip() in row
    assert row.startswith(f"{NAME}\t{MANY[-1]}\tall to 1\t10300\t2026-03-04\t")
    (newest,) = iscp("job", "history", "--limit", 1)[1].splitlines()[1:]
    assert newest.split()[2:6] == [NAME, *MANY[-1].split(), "fail"]
    status = iscp("job", "status", NAME, "--tenant", MANY[-1])[1]
    assert f"message    {('a long message, ' * 20).strip()}\n" in status


def test_usage_begins_with_totals(iscp, jobs, source, clock):
    printed(iscp, "job", "register", NAME, "--tenant", "*")
    finish(jobs, source, TENANT, inserted=5, bytes=1_000)
    finish(jobs, source, "eu", clock=clock, inserted=7, bytes=2_000)
    totals, *lines = printed(iscp, "usage").splitlines()
    assert totals == "2 jobs: 2 iterations, 12 inserted, 3,000 bytes, 3.0 seconds"
    assert [line.split()[0] for line in lines[-3::2]] == ["eu", TENANT]
    assert [row["tenant"] for row in found(iscp, "usage")] == [TENANT, "eu"]


def test_the_history_is_what_happened_oldest_first(iscp, jobs, source, clock):
    printed(iscp, "job", "register", NAME, "--tenant", "*")
    clock.now += timedelta(hours=2)
    finish(jobs, source, TENANT, clock=clock, inserted=5)
    jobs.pause_job(TENANT, MIRROR)
    said = printed(iscp, "job", "history", NAME)
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert lines[-6:] == [
        f"2026-03-04 {NAME} start all to 0 {RUN[:8]}",
        f"07:06:07 {TENANT} completed → running",
        f"2026-03-04 {NAME} complete all to 0 {RUN[:8]}",
        f"07:06:10 {TENANT} running → completed",
        f"2026-03-04 {NAME} pause a person",
        f"07:06:10 {TENANT} completed",
    ]
    assert [line.split()[2] for line in lines if line.startswith("2026-03-04")] == [
        *("register", "register", "start", "complete", "pause")
    ]
    rows = found(iscp, "job", "history", "--tenant", TENANT, "--since", "1h")
    assert [(row["event"], row["before"], row["after"]) for row in rows] == [
        ("start", "completed", "running"),
        ("complete", "running", "completed"),
        ("pause", "completed", "completed"),
    ]
    assert (rows[1]["who"], rows[1]["to"]["version"], rows[1]["inserted"]) == (RUN, 0, 5)
    assert {row["registration"] for row in rows} == {str(jobs.get_job(TENANT, MIRROR).registration)}
    assert len(found(iscp, "job", "history", "--most", "1")) == 1


def test_usage_sums_what_each_tenant_used(iscp, jobs, source, clock):
    printed(iscp, "job", "register", NAME, "--tenant", "*")
    finish(jobs, source, TENANT, clock=clock, inserted=1_234_567, bytes=9_876_543_210)
    said = printed(iscp, "usage")
    assert "1,234,567" in "".join(said.split())
    (row,) = found(iscp, "usage")
    assert (row["tenant"], row["job"], row["inserted"]) == (TENANT, NAME, 1_234_567)
    assert set(row) == {"job", *(each.name for each in fields(Usage))} - {"name"}
    assert (row["iterations"], row["failed"], row["canceled"]) == (1, 0, 0)
    assert row["seconds"] == 3.0
    clock.now += timedelta(days=2)
    assert found(iscp, "usage", "--since", "1d") == []
    assert len(found(iscp, "usage", "--since", "2026-03-01")) == 1


def test_wait_says_which_version_is_searchable(iscp, jobs, source, clock):
    printed(iscp, "job", "register", NAME, "--tenant", "*")
    finish(jobs, source, "eu", clock=clock)
    arguments = ["wait", "warehouse.order_lines", "--tenant", "eu", "--timeout", "0"]
    assert "searchable at version 0" in printed(iscp, *arguments)
    assert found(iscp, *arguments, "--version", "0") == {
        "table": "warehouse.order_lines",
        "tenant": "eu",
        "version": 0,
    }


def test_wait_for_a_tenant_that_is_in_no_log_and_has_no_job_ends_at_once(iscp, jobs):
    printed(iscp, "job", "register", NAME, "--tenant", "*")
    said = refused(iscp, "wait", "warehouse.order_lines", "--tenant", "nobody", "--timeout", "60")
    assert f"neither rows nor a job of tenant 'nobody'; its tenants are: {TENANT}, eu" in said


def test_wait_that_is_in_vain_is_exit_code_1(iscp, jobs):
    printed(iscp, "job", "register", NAME, "--tenant", "*")
    said = refused(iscp, "wait", "warehouse.order_lines", "--timeout", "0")
    assert f"'mirror' of tenants '{TENANT}', 'eu' are not built yet" in said


@pytest.mark.parametrize("command", ["job", "wait", "usage"])
def test_help_names_the_command(iscp, command):
    assert f"iscp {command}" in printed(iscp, command, "--help")


def test_the_help_loads_nothing_that_is_slow():
    code = (
        "import sys\n"
        "sys.argv = ['iscp', 'job', '--help']\n"
        "from iscp_dagster.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "slow = {'sqlalchemy', 'dagster', 'deltalake', 'pyarrow', 'pyspark', 'httpx', 'yaml'}\n"
        "assert not slow & set(sys.modules), slow & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("90s", NOW - timedelta(seconds=90)),
        ("1.5h", NOW - timedelta(minutes=90)),
        ("2w", NOW - timedelta(days=14)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=timezone.utc)),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=timezone.utc)),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=timezone.utc)),
    ],
)
def test_a_time_is_a_length_back_from_now_or_an_iso_time(text, wanted):
    assert parse_time(text, NOW) == wanted


@pytest.mark.parametrize("text", ["", "shop/x", "shop.orders", "shop.orders/", ".orders/x"])
def test_a_job_is_named_as_it_is_shown(text):
    assert parse_job_id(str(MIRROR)) == MIRROR
    with pytest.raises(ConfigError, match=r"database\.table/job"):
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


def test_verify_goes_on_with_the_tables_that_are_there(iscp, lake, source):
    spec = make_job_spec(source, source.indexes[0])
    lake.log.register("eu", MIRROR, lake.make_delta_log(source).get_table_id(), spec)
    said = refused(iscp, "verify", status=2)
    assert "warehouse.to_come: no table yet" in said
    assert "warehouse.refused: s3://bucket/refused cannot be read now" in said
    assert f"{NAME}, tenant eu: not built yet" in said
    code, said = iscp("verify", "--json")
    assert [row["agrees"] for row in json.loads(said)] == [False] * 3
    assert code == 2


def test_verify_says_which_jobs_are_in_error(iscp, lake, source):
    spec = make_job_spec(source, source.indexes[0])
    lake.log.register("eu", MIRROR, lake.make_delta_log(source).get_table_id(), spec)
    asked = Jobs(deployment=lake, sources=[source], cancel_runs=pytest.fail)
    fail(lake.log, begin(asked, source), 10_300, "it is broken")
    said = refused(iscp, "verify", "--index", NAME, status=2)
    assert f"{NAME}, tenant eu: in error 10300: it is broken" in _joined(said)
    assert "not built yet" not in said


def test_verify_says_what_still_has_the_rows_of_a_table_that_was_recreated(iscp, lake, source):
    """Whether or not the table's other jobs were registered again."""
    spec = make_job_spec(source, source.indexes[0])
    for tenant in ("eu", "us"):
        lake.log.register(tenant, MIRROR, "the table before", spec)
    lake.log.mark_stranded("the table before", TableGoneError.code, "it was recreated")
    for whose, arguments in (("tenants eu, us", []), ("tenant us", ["--tenant", "us"])):
        said = refused(iscp, "verify", "--index", NAME, *arguments, status=2)
        assert "nothing to verify" not in said
        assert f"{NAME}, {whose}: in error 10220: it was recreated" in _joined(said)
    asked = Jobs(deployment=lake, sources=[source], cancel_runs=pytest.fail)
    asked.register_job("eu", MIRROR, spec)
    _, said = iscp("verify", "--index", NAME)
    assert f"{NAME}, tenant us: in error 10220" in _joined(said)
    assert f"{NAME}, tenant eu: not built yet" in _joined(said)


def test_verify_of_what_nobody_registered_is_exit_code_2(iscp, lake):
    whose = ("--tenant", "nobody", "--index", "warehouse.order_lines")
    said = refused(iscp, "verify", *whose, status=2)
    assert said == f"iscp: There is no tenant 'nobody'; there are: {TENANT}, eu.\n"
    said = refused(iscp, "verify", "--index", "no_such", status=2)
    assert "No index 'no_such' is declared" in said


def test_verify_of_a_tenant_that_is_in_no_table_says_so_beside_what_else_is_wrong(iscp, lake):
    said = refused(iscp, "verify", "--tenant", "nobody", status=2)
    assert "warehouse.to_come: no table yet" in said
    assert f"There is no tenant 'nobody'; there are: {TENANT}, eu." in said
    # A commit has added the tenant, and the runner has not looked since.
    said = refused(iscp, "verify", "--tenant", "eu", status=2)
    assert "There is no tenant" not in said
    assert said.count("nothing to verify for tenant 'eu'") == 1


def test_verify_of_what_a_person_unregistered_says_how_to_have_it_again(iscp, lake, source):
    spec = make_job_spec(source, source.indexes[0])
    lake.log.register("eu", MIRROR, lake.make_delta_log(source).get_table_id(), spec)
    lake.log.unregister("eu", MIRROR)
    for arguments in (["--tenant", "eu"], []):
        said = refused(iscp, "verify", "--index", NAME, *arguments, status=2)
        assert f"to register it again, run `iscp job register {NAME} --tenant eu`." in _joined(said)
        assert "next look" not in said


def _joined(said):
    """The text in one line, however the terminal folds it."""
    return " ".join(said.split())


def test_verify_takes_an_index_that_only_its_job_names(iscp, lake, source):
    name = JobID(db="warehouse", table="order_lines", job="copy")
    consumer = ConsumerInfo(type="mirror", db=name.db, table=name.table, job=name.job)
    spec = JobSpec(detail=IterationDetail(consumer=consumer))
    table_id = lake.make_delta_log(source).get_table_id()
    lake.log.register("eu", name, table_id, spec)
    own = replace(consumer, type="my.own:Consumer", job="own")
    own_spec = JobSpec(detail=IterationDetail(consumer=own))
    lake.log.register("eu", replace(name, job="own"), table_id, own_spec)
    code, said = iscp("verify", "--index", str(name))
    assert (code, said.strip()) == (2, f"{name}, tenant eu: not built yet")
    # A job with a user's own consumer has no index to compare.
    assert "No index 'own' is declared or registered" in iscp("verify", "--index", "own")[1]
    shutil.rmtree(source.path)
    assert "warehouse.order_lines: no table yet" in iscp("verify", "--index", "copy")[1]


def test_collect_says_what_would_go_and_then_lets_it_go(iscp, jobs, clock):
    place = ("warehouse.order_lines/mine", "--tenant", "eu")
    assert iscp("job", "register", *place, "--type", f"{__name__}:Words")[0] == 0
    assert iscp("job", "unregister", *place)[0] == 0
    assert iscp("job", "collect")[1].strip() == "0 jobs deleted"
    clock.now += timedelta(hours=25)
    said = "warehouse.order_lines/mine, tenant eu: drops nothing"
    assert iscp("job", "collect", "--dry-run")[1].splitlines() == [said, "1 jobs would be deleted"]
    assert len(jobs.deployment.log.list_jobs(include_dropped=True)) == 1
    code, out = iscp("job", "collect", "--json")
    assert (code, json.loads(out)["jobs"][0]["drops"]) == (0, "nothing")
    assert jobs.deployment.log.list_jobs(include_dropped=True) == []


def test_flush_says_how_many_watermarks_moved(iscp, jobs, source, clock):
    assert iscp("job", "register", str(MIRROR), "--tenant", "*")[0] == 0
    for tenant in ("eu", TENANT):
        finish(jobs, source, tenant, clock=clock)
    commit(source, TENANT)
    assert iscp("job", "flush")[1].strip() == "warehouse.order_lines: 1 watermarks moved"
    places = {job.key.tenant: job.watermark.version for job in jobs.deployment.log.list_jobs()}
    assert places == {"eu": 1, TENANT: 0}
    again = {"moved": {"warehouse.order_lines": 0}, "problems": []}
    assert json.loads(iscp("job", "flush", "--json")[1]) == again


@pytest.fixture
def dagster(monkeypatch, tmp_path):
    """Run a webserver that gives the set answers, and a ClickHouse that answers."""
    # A stack of this clone, which may be up, answers for what is not set.
    monkeypatch.setenv("ISCP_HOME", str(tmp_path))
    with answering_server() as webserver, answering_server() as clickhouse:
        monkeypatch.setenv("DAGSTER_URL", webserver.url)
        monkeypatch.setenv("CLICKHOUSE_URL", clickhouse.url)
        monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:9")

        def say(tick="SKIPPED", state="RUNNING", *, age=0.0, load_error=None, beat=0.0, causes=()):
            at = time.time() - age
            chain = [{"error": {"message": cause}} for cause in causes]
            error = (
                {"message": "boom\nat line 1", "errorChain": chain} if tick == "FAILURE" else None
            )
            ticks = [{"status": tick, "timestamp": at, "error": error}]
            told = {"status": state, "ticks": ticks}
            sensor = {"name": "iscp_runner", "minIntervalSeconds": 10, "sensorState": told}
            held = {"repositories": [{"sensors": [sensor]}]}
            entry = {"name": "mine", "locationOrLoadError": load_error or held}
            heartbeat = {"daemonType": "SENSOR", "required": True}
            heartbeat["lastHeartbeatTime"] = time.time() - beat
            data = {
                "instance": {"daemonHealth": {"allDaemonStatuses": [heartbeat]}},
                "workspaceOrError": {"locationEntries": [entry]},
            }
            webserver.told = (200, {}, json.dumps({"data": data}).encode())

        say.webserver, say.clickhouse = webserver, clickhouse
        say()
        yield say


def problems(iscp, *options):
    """Return the problems that `iscp health` finds, by service; Spark does not run."""
    said = refused(iscp, "health", "--json", *options)
    found = {each["what"].split()[0]: each["problem"] for each in json.loads(said)}
    assert found.pop("spark").startswith("does not answer")
    return {name: problem for name, problem in found.items() if problem}


def test_health_finds_nothing_wrong_where_nothing_is(iscp, jobs, source, clock, dagster):
    assert problems(iscp) == {}
    assert "jobs: ok" in iscp("health")[1]


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({"tick": "FAILURE"}, {"sensor": "failed at its last tick: boom at line 1"}),
        (
            {"tick": "FAILURE", "causes": ["ReadError: no lake\nhere", "OSError: no disk\n"]},
            {
                "sensor": "failed at its last tick: ReadError: no lake here "
                "(caused by OSError: no disk)"
            },
        ),
        (
            {"tick": "FAILURE", "causes": ["ReadError: " + "x" * 2_000]},
            {"sensor": f"failed at its last tick: ReadError: {'x' * 489}…"},
        ),
        ({"state": "STOPPED"}, {"sensor": "is switched off"}),
        ({"age": 3_600}, {"sensor": "has not ticked sensor iscp_runner for 3600 s"}),
        ({"beat": 3_600}, {"daemon": "has written no heartbeat lately: sensor"}),
        (
            {
                "load_error": {
                    "message": "boom",
                    "errorChain": [{"error": {"message": "not\nreached"}}],
                }
            },
            {"code": "not reached", "sensor": "is not in any loaded code location"},
        ),
    ],
)
def test_health_says_what_is_wrong_with_dagster(iscp, dagster, told, found):
    dagster(**told)
    assert problems(iscp) == found


def test_health_says_which_service_does_not_answer(iscp, dagster, monkeypatch):
    dagster.clickhouse.told = (500, {}, b"on fire")
    dagster.webserver.told = (502, {}, b"")
    found = problems(iscp)
    assert found["clickhouse"] == "answers SELECT 1 with 500: on fire"
    assert "502" in found["dagster"]
    monkeypatch.delenv("DAGSTER_URL")
    monkeypatch.delenv("CLICKHOUSE_URL")
    found = problems(iscp)
    assert found["CLICKHOUSE_URL"] == "is not set, and no stack is up"
    assert found["dagster"] == "was not checked"
    assert "next: set DAGSTER_URL to the address of its webserver" in iscp("health")[1]


def test_health_tells_jobs_in_error_and_what_is_behind(iscp, jobs, source, clock, dagster):
    clock.now = datetime.now(timezone.utc)
    printed(iscp, "job", "register", NAME, "--tenant", "eu")
    assert problems(iscp) == {}
    clock.now += timedelta(hours=1)
    assert problems(iscp)["table"].startswith(f"behind: {NAME}, tenant eu by 3,6")
    assert f"\n  next: `iscp job status {NAME} --tenant eu`\n" in iscp("health")[1]
    assert problems(iscp, "--max-lag", "7200") == {}
    printed(iscp, "job", "pause", NAME, "--tenant", "eu")
    assert problems(iscp) == {}
    printed(iscp, "job", "resume", NAME, "--tenant", "eu")
    fail(jobs.deployment.log, begin(jobs, source), 10_200, "gone")
    assert problems(iscp) == {"job": "in error for tenant eu: gone"}
    assert (
        "table warehouse.order_lines: held up by the jobs in error: mirror (1 tenant)\n"
        in iscp("health")[1]
    )
    assert (
        f"job {NAME}: in error for tenant eu: gone (code 10200)\n"
        f"  next: remove the cause, then `iscp job repair {NAME} --tenant eu`\n"
    ) in iscp("health")[1]
    printed(iscp, "job", "register", NAME, "--tenant", TENANT)
    fail(jobs.deployment.log, begin(jobs, source, TENANT), 10_200, "gone")
    assert problems(iscp)["job"] == f"in error for tenants {TENANT}, eu: gone"
    assert f"then `iscp job repair {NAME} --tenant '*'`" in iscp("health")[1]
    assert iscp("job", "register", NAME, "--tenant", "zz")[0] == 0
    fail(jobs.deployment.log, begin(jobs, source, "zz"), 10_200, "another row")
    whose = f"in error for tenants {TENANT}, eu, zz: {TENANT}, eu: gone; zz: another row"
    assert problems(iscp) == {"job": whose}


def test_health_tells_a_table_that_no_job_can_ever_follow(iscp, jobs, source, dagster):
    shutil.rmtree(source.path)
    write_deltalake(source.path, pa.table({"id": [1], "region": ["eu"], "doc": ["x"]}))
    assert "The tenant column 'region' of" in problems(iscp)["table"]
    assert "is not a partition column" in problems(iscp)["table"]
    assert "(code 10200)" in iscp("health")[1]


def test_health_tells_what_is_left_out_of_the_location(
    iscp, jobs, source, dagster, tmp_path, monkeypatch
):
    lines = f"""
from iscp_dagster import Mirror, SourceTable, Trigger, View
lines = SourceTable("warehouse.order_lines", key="id", tenant="region", path={source.path!r},
    indexes=[Mirror(columns=["doc"])])
clash = SourceTable("warehouse.order_lines_mirror", key="id")
lost = View("lost", of=SourceTable("warehouse.lost", key="id"), where="id > 1")
"""
    (tmp_path / "left_out_here.py").write_text(lines)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ISCP_ASSETS", "left_out_here")
    jobs.sources[:] = declared_in(os.environ)
    printed(iscp, "job", "register", NAME, "--tenant", "eu")
    found = problems(iscp)
    assert found.keys() == {"table", "declarations"}
    said = f"would both have the asset '{source.name}_mirror'; rename one of them. Until then"
    assert found["table"].startswith(f"left_out_here.py: The location: {NAME} and the table")
    assert f"{said} the source table {source.name}_mirror is left out." in found["table"]
    assert "'warehouse.lost' is not declared in the location" in found["declarations"]
    assert "(code 10130)" in iscp("health")[1]
    assert f"{source.name}: left_out_here.py: The location" in iscp("job", "list")[1]
    shutil.rmtree(source.path)
    assert f"table {source.name}: left_out_here.py: The location" in iscp("health")[1]


def test_health_tells_what_graphql_leaves_out(iscp, jobs, source, dagster, monkeypatch):
    left_out = catalog.ServedCatalog(notes=("shop_t is without its column 'grüße': taken.",))
    monkeypatch.setattr(
        "iscp_dagster.serve.web.server.LazyCatalogLoader.__call__", lambda _: left_out
    )
    assert problems(iscp) == {}
    assert "graphql: shop_t is without its column 'grüße': taken.\n" in iscp("health")[1]


@pytest.mark.parametrize(("code", "verb"), [(10_220, "register"), (10_250, "rebuild")])
def test_health_names_what_mends_a_job_that_a_repair_does_not(
    iscp, jobs, source, dagster, code, verb
):
    printed(iscp, "job", "register", NAME, "--tenant", "eu")
    fail(jobs.deployment.log, begin(jobs, source), code, "gone")
    assert f"\n  next: `iscp job {verb} {NAME} --tenant eu`\n" in iscp("health")[1]


@pytest.mark.parametrize(
    ("message", "then"),
    [
        (f"Rebuild it (`iscp job rebuild {NAME} --tenant '*'`).", ""),
        ("Rebuild the job (`iscp job rebuild`).", f"`iscp job rebuild {NAME} --tenant eu`"),
        ("Somebody has `iscp job list`.", f"remove the cause, then `iscp job repair {NAME} --t"),
    ],
)
def test_health_and_wait_say_the_remedy_once(iscp, jobs, source, dagster, message, then):
    printed(iscp, "job", "register", NAME, "--tenant", "eu")
    fail(jobs.deployment.log, begin(jobs, source), 10_300, message)
    said = iscp("health")[1]
    next_ = said.partition(f"{message} (code 10300)\n")[2].partition("\n")[0]
    assert next_.startswith(f"  next: {then}") if then else "next" not in next_
    waited = " ".join(iscp("wait", "warehouse.order_lines", "--tenant", "eu")[1].split())
    assert waited.count("iscp job re") == message.count("iscp job re") + bool(then)
    assert ("Remove the cause" in waited) is ("remove" in then)


def test_jobs_are_listed_whatever_their_table_raises(iscp, jobs, monkeypatch):
    printed(iscp, "job", "register", NAME, "--tenant", "eu")
    monkeypatch.setattr("iscp_dagster.upkeep.position.read_positions", lambda *_, **__: 1 / 0)
    for command in (("job", "list"), ("job", "status", NAME, "--tenant", "eu")):
        (row,) = found(iscp, *command)
        assert row["lag"] is None


def test_health_tells_what_nobody_expected_of_a_table(iscp, dagster, monkeypatch):
    monkeypatch.setattr("iscp_dagster.cli.checkup.read_positions", lambda *_: 1 / 0)
    told = problems(iscp)["table"]
    assert told.startswith("An unexpected error, ZeroDivisionError")
    assert re.search(r"\(test_cli_jobs\.py:\d+\)\.$", told)


def test_a_table_that_is_yet_to_come_is_not_wrong(iscp, source, dagster):
    shutil.rmtree(source.path)
    assert problems(iscp) == {}
    assert "table warehouse.order_lines: no table yet" in iscp("health")[1]


def test_no_message_repairs_all_tenants_for_one_that_is_called_so():
    assert "in Dagster" in suggest_command("repair", ["*"], JobID(db="d", table="t", job="j"))


def test_a_table_that_is_gone_while_its_indexes_serve_rows_is_wrong(iscp, jobs, source, dagster):
    printed(iscp, "job", "register", NAME, "--tenant", "eu")
    finish(jobs, source)
    shutil.rmtree(source.path)
    told = problems(iscp)["table"]
    assert told.startswith("its indexes serve rows of a table that is gone: ")
    assert source.path in told
    assert "(code 10230)\n  next: put the table back, or unregister" in iscp("health")[1]
