"""The packages stand alone: each imports what it asks for, and nothing of iscp_dagster."""

import re
import sys
from functools import cache
from graphlib import TopologicalSorter

import pytest
import tomllib

from support.clients.scripts import import_modules
from support.paths import PACKAGES, ROOT
from support.project.source_tree import check_beside, find_imports, find_modules, list_brought

EDGES = {"chdb", "dagster", "iscp_dagster", "pyspark", "sqlalchemy", "starlette", "uvicorn"}
EACH = pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)


@cache
def read_project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def get_top(package):
    return package.name.replace("-", "_")


OURS = {get_top(package) for package in PACKAGES}


def list_tops(package, folder):
    """Return the packages that the files of a folder import from."""
    paths = (package / folder).rglob("*.py")
    return {name.partition(".")[0] for path in paths for name in find_imports(path)}


@EACH
def test_its_files_are_those_of_a_package(package):
    project = read_project(package)
    assert project["name"] == package.name
    assert project["readme"] == "README.md"
    assert (package / get_top(package) / "py.typed").exists()
    assert list((package / "tests").glob("test_*.py"))
    page = (package / "README.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {package.name}\n")
    assert re.search(r"Installed .*\d MB", page)


@EACH
def test_it_imports_nothing_of_the_project_nor_do_its_tests(package):
    allowed = {get_top(package), *(name.replace("-", "_") for name in list_ours(package))}
    for folder in (get_top(package), "tests"):
        tops = list_tops(package, folder)
        assert not tops & {"iscp_dagster", "assets", "resources", "bench"}
        assert tops & OURS <= allowed
    assert "support" not in list_tops(package, "tests")


def list_requirements(folder, *left_out):
    """Return what a package requires, with its extras except those that are left out."""
    project = read_project(folder)
    extras = project.get("optional-dependencies", {})
    texts = {text for name in extras.keys() - {*left_out} for text in extras[name]}
    return texts.union(project.get("dependencies", ()))


def list_ours(package):
    """Return the other packages of the project that a package requires."""
    names = {re.match(r"[\w.-]+", text)[0] for text in list_requirements(package)}
    return names & {other.name for other in PACKAGES} - {package.name}


def test_packages_that_need_each_other_make_no_circle():
    TopologicalSorter({package.name: list_ours(package) for package in PACKAGES}).prepare()


@EACH
def test_it_asks_for_what_it_imports(package):
    own = {get_top(package), *list_brought(list_requirements(package, "test"))}
    assert list_tops(package, get_top(package)) - own - sys.stdlib_module_names == set()


def test_the_project_asks_for_each_by_its_version():
    pins = {f"{package.name}=={read_project(package)['version']}" for package in PACKAGES}
    assert pins <= list_requirements(ROOT)


def test_they_are_checked_like_the_project():
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    typed = {f"packages/{package.name}/{get_top(package)}" for package in PACKAGES}
    assert typed <= set(tools["mypy"]["files"])
    assert tools["pytest"]["ini_options"]["testpaths"] == ["tests", "packages"]


@EACH
def test_nothing_in_it_makes_a_circle(package):
    modules = find_modules(package / get_top(package))
    arrows = [
        (module, target)
        for module, path in modules.items()
        for target in find_imports(path, modules)
        if target in modules
    ]
    for folder in {get_top(package), *(module.rpartition(".")[0] for module in modules)} - {""}:
        check_beside(folder, arrows)


@pytest.mark.parametrize("pure", ["idempotent_receiver", "chdb_http.sql.parse"])
def test_what_is_pure_imports_no_edge(pure):
    assert not {module.partition(".")[0] for module in import_modules(pure)} & EDGES
