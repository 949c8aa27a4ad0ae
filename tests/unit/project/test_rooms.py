"""The rooms: pure modules stay pure, and imports go neither upwards nor in a circle."""

import ast
import fnmatch
import re
import sys
from functools import cache

import pytest
import tomllib

from iscp_dagster.model import variables
from iscp_dagster.model.imports import EXTRAS
from support.clients.scripts import import_modules
from support.paths import DOCS, PACKAGES, ROOT
from support.project.source_tree import check_beside, find_imports, find_modules, list_brought

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
    "batchstates",
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
    *(f"planning.{name}" for name in ("job_specs", "effective", "look", "news", "problems")),
    *(
        f"joblog.{name}"
        for name in ("history", "iterations", "leases", "lifecycle", "index_consumer")
    ),
    *("joblog.updates", "joblog.results"),
    *(f"batchstates.{name}" for name in ("compare", "memory", "protocol")),
    *(f"delta.log.{name}" for name in ("commit", "mark", "tenants")),
    *(f"clickhouse.connect.{name}" for name in ("barrier", "engines", "portions", "quoting")),
    *("clickhouse.types.type_parser", "clickhouse.types.widening"),
    *(f"clickhouse.kinds.{name}" for name in ("changes", "kind", "mirror", "text", "vector")),
    *(f"serve.live.{name}" for name in ("cursor", "errors", "positions", "transport.protocol")),
    *("clickhouse.tables.staging", "clickhouse.write.tokens"),
    *(f"serviceconsumers.{name}" for name in ("chunks", "invoking", "runtime_protocol", "sorting")),
    *("webhooks.answers", "webhooks.sending.addresses", "webhooks.sending.signing"),
)
VARIABLES = {value for name, value in vars(variables).items() if name.isupper()}


def read_requirements():
    """Return the requirements of the core, and of each extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["dependencies"], project["optional-dependencies"]


@cache
def list_modules():
    return find_modules(PACKAGE)


@cache
def list_imports(module):
    return find_imports(list_modules()[module], list_modules())


def list_tops(module):
    """Return the packages that a module imports from."""
    return {name.partition(".")[0] for name in list_imports(module)}


def get_room(module):
    return module.split(".")[1]


def list_arrows():
    """Return each import within the package, as the names of both modules."""
    within = [module for module in list_modules() if module != "iscp_dagster"]
    return [(module, target) for module in within for target in list_imports(module) & {*within}]


def read_architecture():
    return (DOCS / "architecture.md").read_text(encoding="utf-8")


def test_every_room_has_a_place():
    rooms = {get_room(module) for module in list_modules() if module != "iscp_dagster"}
    assert rooms == set(ROOMS)
    page = read_architecture()
    places = [page.index(f"| `iscp_dagster/{name}/` |") for name in ROOMS[:-1]]
    assert places == sorted(places)


def test_no_import_runs_upwards():
    upwards = [
        f"{module} -> {target}"
        for module, target in list_arrows()
        if ROOMS.index(get_room(module)) < ROOMS.index(get_room(target))
    ]
    assert upwards == []


@pytest.mark.parametrize("folder", sorted({path.parent for path in PACKAGE.rglob("*.py")}), ids=str)
def test_modules_and_folders_of_one_folder_make_no_circle(folder):
    """No module or folder reaches itself through another in the same folder."""
    check_beside(".".join(folder.relative_to(ROOT).parts), list_arrows())


def test_no_room_is_crowded():
    """Nor is any folder of tests; the package itself holds ROOMS."""
    roots = (PACKAGE, ROOT / "tests", *PACKAGES)
    folders = {path.parent for root in roots for path in root.rglob("*.py")} - {PACKAGE}
    counts = {
        folder: len([*folder.glob("[a-z]*.py"), *folder.glob("*/__init__.py")])
        for folder in folders
    }
    assert {folder: count for folder, count in counts.items() if count > MOST} == {}


def test_the_package_imports_nothing_of_the_deployment():
    for module in list_modules():
        assert not list_tops(module) & {"assets", "resources", "tests", "bench"}, module


def test_a_variable_that_rooms_share_is_spelt_once():
    modules = {
        module
        for module, path in list_modules().items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in VARIABLES
    }
    assert modules == {variables.__name__}


def test_each_room_imports_what_a_deployment_installs_or_the_extra_that_it_names():
    """docs/architecture.md names the extra in the line of each room that needs one."""
    page = read_architecture()
    core, extras = read_requirements()
    assert set(EXTRAS) == set(extras)
    missing = []
    for module in set(list_modules()) - {"iscp_dagster"}:
        room = get_room(module)
        (line,) = re.findall(rf"^\| `iscp_dagster/{room}/` .*", page, re.MULTILINE) or [""]
        names = re.findall(r"extra `(\w+)`", line)
        tops = list_brought(core).union(*(list_brought(extras[name]) for name in names))
        missing += [
            f"{module} -> {top}"
            for top in list_tops(module) - tops - {"iscp_dagster"} - sys.stdlib_module_names
        ]
    assert missing == []


def test_an_extra_is_looked_for_by_what_it_alone_brings():
    core, extras = read_requirements()
    for extra, looked_for in EXTRAS.items():
        assert set(looked_for) <= list_brought(extras[extra]) - list_brought(core), extra


def test_what_is_pure_imports_no_edge():
    names = {name: fnmatch.filter(list_modules(), f"iscp_dagster.{name}") for name in PURE}
    assert all(names.values()), names
    loaded = import_modules(*(module for modules in names.values() for module in modules))
    assert not {module.partition(".")[0] for module in loaded} & EDGES
    assert "iscp_dagster.planning.triggers.plan" in loaded
