"""The rooms: pure modules stay pure, and imports go neither upwards nor in a circle."""

import ast
import fnmatch
import re
import subprocess
import sys
from functools import cache

import pytest

from iscp_dagster.model import variables
from iscp_dagster.model.imports import EXTRAS
from support.paths import PACKAGES, ROOT
from support.source_tree import check_beside, find_imports, find_modules, list_brought

PACKAGE = ROOT / "iscp_dagster"
# From the ground up, as in docs/architecture.md: each may import itself and those before it.
ROOMS = (
    "model",
    "events",
    "spark",
    "delta",
    "clickhouse",
    "joblog",
    "webhooks",
    "eventtriggers",
    "serviceconsumers",
    "batches",
    "sync",
    "planning",
    "upkeep",
    "runs",
    "local",
    "api",
    "serve",
    "jobservices",
    "location",
    "demo",
    "cli",
    "definitions",
)
MOST = 13
EDGES = {"dagster", "pyspark", "sqlalchemy", "clickhouse_connect", "chdb", "deltalake", "pyarrow"}
PURE = (
    "model.*",
    "events.*",
    "planning.triggers.*",
    "sync.bounds",
    "sync.iteration.*",
    "sync.reading.requests",
    *(f"planning.{name}" for name in ("declared", "effective", "look", "news", "problems")),
    *(f"joblog.{name}" for name in ("history", "iterations", "leases", "lifecycle", "sharing")),
    *("joblog.updates", "joblog.results"),
    *(f"batches.{name}" for name in ("compare", "memory", "protocol")),
    *(f"delta.log.{name}" for name in ("commit", "mark", "tenants")),
    *(f"clickhouse.connect.{name}" for name in ("barrier", "engines", "portions", "quoting")),
    *("clickhouse.types.type_parser", "clickhouse.types.widening"),
    *(f"clickhouse.kinds.{name}" for name in ("changes", "kind", "mirror", "text", "vector")),
    *(f"serve.live.{name}" for name in ("cursor", "errors", "positions", "transport.protocol")),
    *("clickhouse.tables.staging", "clickhouse.write.tokens"),
    *(f"serviceconsumers.{name}" for name in ("chunks", "invoking", "services", "sorting")),
    *("webhooks.answers", "webhooks.sending.addresses", "webhooks.sending.signing"),
)
VARIABLES = {value for name, value in vars(variables).items() if name.isupper()}

OURS = {"iscp_dagster"}


def asked_for():
    """Return the requirements of the core, and of each extra."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["dependencies"], project["optional-dependencies"]


@cache
def modules():
    return find_modules(PACKAGE)


@cache
def imported(module):
    """Return the modules that a module imports."""
    return find_imports(modules()[module], modules())


def room(module):
    return module.split(".")[1]


def arrows():
    return [
        (module, target)
        for module in modules()
        if module != "iscp_dagster"
        for target in imported(module)
        if target in modules() and target != "iscp_dagster"
    ]


def test_every_room_has_a_place():
    assert {room(module) for module in modules() if module != "iscp_dagster"} == set(ROOMS)
    said = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    places = [said.index(f"| `iscp_dagster/{name}/` |") for name in ROOMS[:-1]]
    assert places == sorted(places)


def test_no_import_runs_upwards():
    upwards = [
        f"{module} -> {target}"
        for module, target in arrows()
        if ROOMS.index(room(module)) < ROOMS.index(room(target))
    ]
    assert upwards == []


@pytest.mark.parametrize("folder", sorted({each.parent for each in PACKAGE.rglob("*.py")}), ids=str)
def test_what_stands_beside_each_other_makes_no_circle(folder):
    """No module or folder reaches itself through another in the same folder."""
    check_beside(".".join(folder.relative_to(ROOT).parts), arrows())


def test_no_room_is_crowded():
    """Nor is any folder of tests; the package itself holds ROOMS."""
    places = (ROOT / "tests", *PACKAGES)
    beside = {path.parent for place in places for path in place.rglob("*.py")}
    held = {
        str(folder.relative_to(ROOT)): len(
            [*folder.glob("[a-z]*.py"), *folder.glob("*/__init__.py")]
        )
        for folder in {path.parent for path in modules().values()} - {PACKAGE} | beside
    }
    assert {name: count for name, count in held.items() if count > MOST} == {}


def test_the_package_imports_nothing_of_the_deployment():
    for module in modules():
        tops = {name.split(".")[0] for name in imported(module)}
        assert not tops & {"assets", "resources", "tests", "bench"}, module


def test_a_variable_that_rooms_share_is_spelt_once():
    held = {
        f"{module}: {node.value}"
        for module, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in VARIABLES
    }
    assert {each.partition(":")[0] for each in held} == {variables.__name__}


def test_each_room_imports_what_a_deployment_installs_or_the_extra_that_it_names():
    """docs/architecture.md names the extra in the line of each room that needs one."""
    said = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    core, extras = asked_for()
    assert set(EXTRAS) == set(extras)
    lacking = []
    for module in set(modules()) - {"iscp_dagster"}:
        (line,) = re.findall(rf"^\| `iscp_dagster/{room(module)}/` .*", said, re.MULTILINE) or [""]
        named = re.findall(r"extra `(\w+)`", line)
        held = list_brought(core).union(*(list_brought(extras[name]) for name in named))
        tops = {name.partition(".")[0] for name in imported(module)}
        lacking += [f"{module} -> {top}" for top in tops - held - OURS - sys.stdlib_module_names]
    assert lacking == []


def test_an_extra_is_looked_for_by_what_it_alone_brings():
    core, extras = asked_for()
    for extra, looked_for in EXTRAS.items():
        assert set(looked_for) <= list_brought(extras[extra]) - list_brought(core), extra


def test_what_is_pure_imports_no_edge():
    named = {each: fnmatch.filter(modules(), f"iscp_dagster.{each}") for each in PURE}
    assert all(named.values()), named
    pure = [module for each in named.values() for module in each]
    code = f"import sys, {', '.join(pure)}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {module.partition(".")[0] for module in run.stdout.split()} & EDGES
    assert "iscp_dagster.planning.triggers.plan" in run.stdout
