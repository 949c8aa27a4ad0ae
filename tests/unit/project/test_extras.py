"""Without extras the package works against existing services, and names the extra it lacks."""

import json
import subprocess
import sys

import pytest

from iscp_dagster.model.imports import EXTRAS
from support.clients.scripts import run_script
from support.errors import assert_names
from support.jobs.one_table import make_variables
from support.paths import ROOT
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
    if each.name.split(".")[1] not in {"local", "serve", "demo", "definitions", "jobservices"}:
        import_module(each.name)
table = iscp_dagster.SourceTable("shop.orders", key="id", indexes=[iscp_dagster.Mirror()])
resources = iscp_dagster.resources_from_environment()
iscp_dagster.build_definitions([table], resources).get_repository_def()

def read_output(run):
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            run()
    except SystemExit as end:
        return [end.code, output.getvalue()]

def command(*words, **settings):
    sys.argv[1:] = words
    with patch.dict(os.environ, settings):
        return read_output(main)

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
    "webserver": read_output(webserver),
}
json.dump(results, sys.stdout)
"""


BENCH = """
import importlib.util, runpy, sys

class Without:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

hidden = {"moto", "psutil", "hypercorn", "pytest", "hypothesis"}
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in hidden else find(name, *more)
sys.meta_path.insert(0, Without)
runpy.run_module("bench", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Run commands in a process without the extras' modules; return exit codes and outputs."""
    folder = tmp_path_factory.mktemp("bare")
    environment = clean_environment(folder / "home") | make_variables(folder)
    hidden = json.dumps([module for modules in EXTRAS.values() for module in modules])
    return json.loads(run_script(SCRIPT.replace("HIDDEN", hidden), folder, environment))


def test_what_needs_no_extra_works_without(outcomes):
    code, text = outcomes["help"]
    assert (code, "job" in text) == (0, True)
    assert outcomes["status"][0] == 3
    assert outcomes["jobs"] == [0, "no jobs\n"]


@pytest.mark.parametrize(
    ("command", "subject", "extra"),
    [
        ("up", "`iscp up`", "local"),
        ("demo", "`iscp demo`", "demo"),
        ("serve", "`iscp serve`", "serve"),
        ("test", "`iscp test`", "test"),
        ("postgres", "PostgreSQL", "postgres"),
        ("invocations", "PostgreSQL", "postgres"),
    ],
)
def test_a_command_that_needs_an_extra_names_it_in_one_line(outcomes, command, subject, extra):
    code, text = outcomes[command]
    assert (code, text.count("\n")) == (1, 1)
    install = f"pip install 'iscp_dagster[{extra}]'"
    assert_names(text, "iscp", subject, ", ".join(EXTRAS[extra]), install)


def test_the_guarded_webserver_needs_an_extra_of_its_own(outcomes):
    text = outcomes["webserver"][0]
    assert text.startswith("iscp: ")
    assert_names(text, "asgi_guards, dagster_webserver", "pip install 'iscp_dagster[webserver]'")


@pytest.mark.parametrize(("part", "module"), [("store", "moto"), ("invocations", "psutil")])
def test_a_part_of_the_measurements_names_the_extra_that_it_needs(part, module):
    command = [sys.executable, "-c", BENCH, "--only", part]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 2, run.stderr
    assert_names(" ".join(run.stderr.split()), f"part {part}", module, "`test`")
