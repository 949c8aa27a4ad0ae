"""The triggers: their tables of cases, and properties of every plan."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.batchstates.factory import StatePlaces, make_opener
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.declared.services import SERVICE
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import Job, JobID, JobKey, JobStatus
from iscp_dagster.model.moment import EPOCH, START, Moment
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec, TriggerSpec
from iscp_dagster.model.states import ACTIVE, STARTABLE, JobState
from iscp_dagster.planning.triggers import plan_iteration
from iscp_dagster.planning.triggers.loading import load_trigger
from iscp_dagster.planning.triggers.plan import check_trigger, plan_iterations
from support.errors import assert_names, raises_naming
from support.paths import GOLDEN

TABLE = GOLDEN / "triggers"
NOW = datetime(2025, 6, 18, tzinfo=timezone.utc)
MICROS = 1_000_000
JOB = re.compile(r"(?P<name>\w+)\s+(?P<at>start|\d+)\s+(?P<state>[a-z]+)(?P<options>.*)")


def make_job(
    name: str,
    version: int,
    state: JobState = JobState.COMPLETED,
    *,
    priority: int = 0,
    tenant: str = "acme",
    dropped: bool = False,
    paused: bool = False,
    status: JobStatus | None = None,
    shard: str | None = None,
    type_: str = "mirror",
    **trigger,
) -> Job:
    options = {} if shard is None else {"shard": int(shard)}
    consumer = ConsumerInfo(type=type_, table="t", db="d", job=name, options=options)
    return Job(
        key=JobKey(tenant=tenant, table_id="id", job_name=name),
        registration=1,
        name=JobID(db="d", table="t", job=name),
        spec=JobSpec(
            trigger=TriggerSpec(**trigger),
            detail=IterationDetail(priority=priority, consumer=consumer),
        ),
        state=state,
        watermark=START if version < 0 else Moment(version, version * MICROS),
        status=status or JobStatus(),
        create_at=NOW,
        drop_at=NOW if dropped else None,
        paused_at=NOW if paused else None,
    )


def parse_job(line: str, now: datetime) -> Job:
    match = JOB.fullmatch(line)
    assert match, line
    options = {
        name: value for name, _, value in (o.partition("=") for o in match["options"].split())
    }
    failed_at = now - timedelta(seconds=int(options.get("ago", 0)))
    attempts = int(options.get("failed", 0))
    return make_job(
        match["name"],
        -1 if match["at"] == "start" else int(match["at"]),
        JobState[match["state"].upper()],
        priority=int(options.get("priority", 0)),
        dropped="dropped" in options,
        paused="paused" in options,
        status=JobStatus(
            attempts=attempts,
            end_at=failed_at if attempts else None,
            repairs=int("repaired" in options),
        ),
        shard=options.get("shard"),
        type_=SERVICE if "service" in options else "mirror",
        **trigger_options(options),
    )


def trigger_options(options: dict[str, str]) -> dict[str, object]:
    if "every" in options:
        share = "true" if "share" in options else "false"
        schedule = {"interval": options["every"], "share": share}
        return {"job_type": "periodic", "schedule": schedule}
    kind = "greedy" if "greedy" in options else options.get("type", "default")
    return {"job_type": kind, "independent": "independent" in options}


def plan_each(jobs, latest, _now=None):
    """Plan each job by itself."""
    return tuple(i for job in jobs for i in plan_iteration([job], latest))


def even(jobs, latest, _now):
    """The trigger of golden/triggers/custom.txt."""
    upto = latest.version - latest.version % 2
    return plan_each(jobs, Moment(upto, upto * MICROS))


def show(iteration: Iteration) -> str:
    jobs = " ".join(key.job_name for key in iteration.jobs)
    priority = f" priority {iteration.priority}" if iteration.priority else ""
    return f"plan {iteration.range} {jobs}{priority}"


def read_cases() -> list[tuple[str, list[str]]]:
    cases = []
    for path in sorted(TABLE.glob("*.txt")):
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        blocks = [block.splitlines() for block in "\n".join(lines).strip().split("\n\n")]
        cases += [
            (f"{path.stem}: {title}", [line.strip() for line in lines]) for title, *lines in blocks
        ]
    return cases


@pytest.mark.parametrize(("title", "lines"), read_cases(), ids=[title for title, _ in read_cases()])
def test_a_trigger_plans_as_its_table_says(title, lines):
    settings = dict(line.split() for line in lines if line.startswith(("latest", "now")))
    now = EPOCH + timedelta(seconds=float(settings["now"])) if "now" in settings else NOW
    version = int(settings["latest"])
    latest = START if version < 0 else Moment(version, version * MICROS)
    jobs = [
        parse_job(line, now) for line in lines if not line.startswith(("latest", "now", "plan"))
    ]
    planned = plan_iterations(jobs, latest, now, load={"even": even}.__getitem__)
    assert [show(each) for each in planned] == [line for line in lines if line.startswith("plan")]


@pytest.mark.parametrize(
    ("trigger", "values"),
    [
        (lambda jobs, latest, now: 1 / 0, ["ZeroDivisionError"]),
        (lambda jobs, latest, now: plan_iteration(jobs, latest) * 2, ["(1, 5]", "'a'"]),
        (lambda jobs, latest, now: plan_iteration(jobs, Moment(7)), ["(1, 7]", "'a'"]),
        (lambda jobs, latest, now: plan_iteration([make_job("z", 1)], latest), ["'z'"]),
        (lambda jobs, latest, now: plan_iteration([make_job("a", 0)], latest), ["(0, 5]", "'a'"]),
    ],
)
def test_a_trigger_may_plan_its_jobs_once_from_their_watermarks(trigger, values):
    with raises_naming(ConfigError, "'mine'", *values):
        plan_iterations([make_job("a", 1, job_type="mine")], Moment(5), NOW, load=lambda _: trigger)


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Install a package that offers a trigger, a consumer and a state store, as pip would.

    Beside it lie two modules with a mistake in their first line.
    """
    (tmp_path / "unfinished.py").write_text("class Own(\n")
    (tmp_path / "undefined.py").write_text("Own = nonsense\n")
    (tmp_path / "offering.py").write_text(
        "def rarely(jobs, latest, now):\n    return ()\n\n"
        "class Flaky:\n    def __init__(self):\n        raise RuntimeError('no calendar')\n\n"
        "class Consumer:\n"
        "    def __init__(self, source, info):\n        self.info = info\n"
        "    def consume(self, retriever):\n        pass\n\n"
        "from iscp_dagster.batchstates.memory import MemoryStates\n\n"
        "class Kept(MemoryStates):\n"
        "    def __init__(self, setting, backing):\n"
        "        super().__init__()\n        self.place = setting, backing.database_url\n"
    )
    folder = tmp_path / "offering-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[iscp_dagster.triggers]\nrarely = offering:rarely\nbroken = notoffering:Any\n"
        "[iscp_dagster.consumers]\noffered = offering:Consumer\n"
        "[iscp_dagster.state_stores]\nkept = offering:Kept\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
def test_triggers_and_consumers_are_found_by_entry_point_or_import_path():
    assert load_trigger(f"{__name__}:even") is even
    assert plan_iterations([make_job("a", 1, job_type="rarely")], Moment(5), NOW) == ()
    check_trigger(TriggerSpec(job_type="rarely"))
    info = ConsumerInfo(type="offered", db="d", table="t", job="j")
    consumer = get_consumer_kind("offered").make_consumer(SourceTable("d.t", key="id"), info, None)
    assert (type(consumer).__name__, consumer.info) == ("Consumer", info)
    with raises_naming(ConfigError, "'often'", "iscp_dagster.triggers", "rarely"):
        check_trigger(TriggerSpec(job_type="often"))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("job_type", "values"),
    [
        ("no.such.module:Name", ["'no.such.module:Name'", "'no'"]),
        ("periodic", ["interval", "None"]),
        ("offering:Flaky", ["'offering:Flaky'", "RuntimeError", "calendar"]),
        ("broken", ["'broken'", "'notoffering'"]),
        ("os:sep", ["'os:sep'", "'/'"]),
        ("unfinished:Own", ["unfinished.py", "1"]),
        ("undefined:Own", ["undefined.py", "1", "'nonsense'"]),
    ],
)
def test_a_job_type_that_cannot_plan_stops_no_other(job_type, values):
    reasons = []
    jobs = [make_job("a", 1, job_type=job_type), make_job("b", 1)]
    planned = plan_iterations(jobs, Moment(5), NOW, refuse=reasons.append)
    assert [show(each) for each in planned] == ["plan (1, 5] b"]
    (reason,) = reasons
    assert_names(str(reason), *values)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "setting", ["kept", "kept://somewhere/else", "kept:a/place", "offering:Kept"]
)
def test_state_stores_are_found_by_entry_point_and_import_path(setting):
    endpoint = ClickHouseEndpoint.parse("http://127.0.0.1:9")
    store = make_opener(setting, log_url="sqlite:///log", endpoint=endpoint)()
    assert store.place == (setting, "sqlite:///log")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("redis", ["'redis'", "kept"]),
        ("redis://localhost/0", ["redis://…", "kept"]),
        ("offering:__name__", ["'offering:__name__'", "'offering'"]),
    ],
)
def test_a_state_store_that_nobody_offers_is_refused_with_the_known_ones(setting, values):
    with raises_naming(ConfigError, *values):
        make_opener(setting, log_url="", endpoint=None)


def test_a_stores_backing_shows_no_password():
    assert "secret" not in repr(StatePlaces(database_url="postgresql://user:secret@there/log"))


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ({}, ["interval", None, "90s"]),
        ({"interval": "soon"}, ["interval", "'soon'", "90s"]),
        ({"interval": "0s"}, ["interval", "'0s'", "greedy"]),
        ({"interval": "0.0001ms"}, ["interval", "'0.0001ms'", "greedy"]),
        ({"interval": f"{10**12}w"}, ["interval", f"'{10**12}w'", "90s"]),
        ({"interval": "1h", "share": "maybe"}, ["share", "'maybe'"]),
    ],
)
def test_a_schedule_that_could_never_plan_is_refused(schedule, values):
    with raises_naming(ConfigError, *values):
        check_trigger(TriggerSpec(job_type="periodic", schedule=schedule))


def test_a_schedule_that_can_plan_is_taken():
    check_trigger(TriggerSpec(job_type="periodic", schedule={"interval": "1.5m", "share": True}))


def test_a_custom_trigger_plans_the_jobs_of_its_type_only():
    seen = []

    def always(jobs, latest, now):
        seen.extend(job.key.job_name for job in jobs)
        return plan_each(jobs, latest)

    jobs = [make_job("b", 2, job_type="mine"), make_job("a", 3, job_type="mine")]
    others = [make_job("c", 4), make_job("d", 4)]
    planned = plan_iterations([*jobs, *others], Moment(9), NOW, load={"mine": always}.__getitem__)
    assert seen == ["a", "b"]
    assert list(map(show, planned)) == ["plan (4, 9] c d", "plan (3, 9] a", "plan (2, 9] b"]


def test_jobs_of_two_tenants_are_not_planned_together():
    with raises_naming(ConfigError, "tenant"):
        plan_iterations([make_job("a", 1), make_job("a", 1, tenant="other")], Moment(5), NOW)


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"jobs": ()}, ["()"]),
        ({"jobs": (make_job("a", 1).key,) * 2}, ["job_name='a'"]),
        ({"tenants": frozenset({"other"})}, ["['other']", "['acme']"]),
        ({"table_id": "else"}, ["else", "['id']"]),
    ],
)
def test_an_iteration_that_contradicts_itself_is_refused(changes, values):
    (iteration,) = plan_iteration([make_job("a", 1)], Moment(5))
    with raises_naming(ConfigError, *values):
        replace(iteration, **changes)


versions = st.integers(-1, 12)
a_job = st.builds(
    lambda version, state, independent, priority: make_job(
        "x", version, state, independent=independent, priority=priority
    ),
    versions,
    st.sampled_from(JobState),
    st.booleans(),
    st.integers(-3, 3),
)
job_lists = st.lists(a_job, max_size=6).map(
    lambda jobs: [
        replace(job, key=replace(job.key, job_name=f"j{at}")) for at, job in enumerate(jobs)
    ]
)


@given(jobs=job_lists, latest=st.integers(-1, 15).map(Moment), data=st.data())
def test_a_plan_has_each_startable_job_that_is_behind_once(jobs, latest, data):
    planned = plan_iterations(jobs, latest, NOW)
    assert plan_iterations(data.draw(st.permutations(jobs)), latest, NOW) == planned
    by_key = {job.key: job for job in jobs}
    chosen = [key for iteration in planned for key in iteration.jobs]
    assert len(chosen) == len(set(chosen))
    for iteration in planned:
        assert iteration.from_.version < iteration.to.version
        for key in iteration.jobs:
            assert by_key[key].watermark == iteration.from_
            assert by_key[key].state in STARTABLE
    for job in jobs:
        due = job.state in STARTABLE and job.watermark.version < latest.version
        if job.spec.trigger.independent:
            assert (job.key in chosen) == due
        elif job.watermark == START and due:
            assert job.key in chosen


@given(jobs=job_lists, latest=st.integers(12, 15).map(Moment), data=st.data())
def test_plans_bring_every_job_that_may_run_to_the_latest_version(jobs, latest, data):
    rows = {job.key: job for job in jobs}
    running: list[Iteration] = []
    for job in jobs:
        if job.state in ACTIVE:
            rows[job.key] = replace(job, state=JobState.COMPLETED)
    for _ in range(3 * len(jobs) + 3):
        for iteration in plan_iterations(rows.values(), latest, NOW):
            running.append(iteration)
            for key in iteration.jobs:
                rows[key] = replace(rows[key], state=JobState.RUNNING)
        if not running:
            break
        done = running.pop(data.draw(st.integers(0, len(running) - 1)))
        for key in done.jobs:
            assert rows[key].watermark.version < done.to.version
            rows[key] = replace(rows[key], watermark=done.to, state=JobState.COMPLETED)
    assert not running
    for job in rows.values():
        assert job.state is JobState.ERROR or job.watermark == latest
