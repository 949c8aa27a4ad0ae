"""Without extras the package works against existing services, and names the extra it lacks."""

import json
import subprocess
import sys

import pytest

from iscp_dagster.model.imports import EXTRAS
from support.services.stack import clean_environment

SCRIPT = """
import contextlib, io, json, os, pkgutil, sys
from importlib import import_module
from importlib.machinery import PathFinder
from unittest.mock import patch

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without

import iscp_dagster
from iscp_dagster.cli.main import main
from iscp_dagster.local.web.dagster_webserver import main as webserver

for name in iscp_dagster.__all__:
    getattr(iscp_dagster, name)
for each in pkgutil.walk_packages(iscp_dagster.__path__, "iscp_dagster."):
    room, within = (each.name.split(".") + [""])[1:3]
    if room in {"local", "serve", "demo", "definitions", "jobservices"}:
        continue
    if (room, within) not in {("invocations", "ingress"), ("invocations", "serving")}:
        import_module(each.name)
table = iscp_dagster.SourceTable("shop.orders", key="id", indexes=[iscp_dagster.Mirror()])
resources = iscp_dagster.resources_from_environment()
iscp_dagster.build_definitions([table], resources).get_repository_def()

def told(run):
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            run()
    except SystemExit as end:
        return [end.code, said.getvalue()]

def command(*words, **settings):
    sys.argv[1:] = words
    with patch.dict(os.environ, settings):
        return told(main)

results = {
    "help": command("--help"),
    "up": command("up"),
    "status": command("status"),
    "demo": command("demo"),
    "serve": command("serve"),
    "test": command("test"),
    "jobs": command("job", "list"),
    "postgres": command("job", "list", ISCP_LOG_URL="postgresql://iscp:secret@127.0.0.1/log"),
    "invocations": command(
        "invocations", "list", ISCP_LOG_URL="postgresql://iscp:secret@127.0.0.1/log"
    ),
    "webserver": told(webserver),
}
json.dump(results, sys.stdout)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Run commands in processes without the extras' modules; return exit codes and outputs."""
    folder = tmp_path_factory.mktemp("bare")
    environment = clean_environment(folder / "home") | {
        "CLICKHOUSE_URL": "http://127.0.0.1:1",
        "SPARK_REMOTE": "sc://127.0.0.1:1",
        "ISCP_LOG_URL": f"sqlite:///{folder / 'log.sqlite'}",
        "ISCP_LAKE": str(folder),
    }
    hidden = json.dumps([module for modules in EXTRAS.values() for module in modules])
    script = SCRIPT.replace("HIDDEN", hidden)
    run = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_what_needs_no_extra_works_without(told):
    code, said = told["help"]
    assert (code, "job" in said) == (0, True)
    assert told["status"][0] == 3
    assert told["jobs"] == [0, "no jobs\n"]


@pytest.mark.parametrize(
    ("asked", "what", "extra"),
    [
        ("up", "`iscp up`", "local"),
        ("demo", "`iscp demo`", "demo"),
        ("serve", "`iscp serve`", "serve"),
        ("test", "`iscp test`", "test"),
        ("postgres", "the ISCP log on PostgreSQL", "postgres"),
        ("invocations", "the ISCP log on PostgreSQL", "postgres"),
    ],
)
def test_what_needs_one_says_so_in_a_line_with_the_command(told, asked, what, extra):
    missing = ", ".join(EXTRAS[extra])
    said = f"iscp: {what} needs {missing}: pip install 'iscp_dagster[{extra}]'\n"
    assert told[asked] == [1, said]


def test_the_guarded_webserver_needs_an_extra_of_its_own(told):
    remedy = "pip install 'iscp_dagster[webserver]'"
    needed = "asgi_guards, dagster_webserver"
    assert told["webserver"][0] == f"iscp: Dagster's webserver needs {needed}: {remedy}"
