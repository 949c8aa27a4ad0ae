"""The packages stand alone: each imports what it asks for, and nothing of iscp_dagster."""

import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter

import pytest
import tomllib

from support.paths import PACKAGES, ROOT
from support.source_tree import check_beside, find_imports, find_modules, list_brought

EDGES = {"chdb", "dagster", "iscp_dagster", "pyspark", "sqlalchemy", "starlette", "uvicorn"}
EACH = pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)


@cache
def read_project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def top_of(package):
    return package.name.replace("-", "_")


OURS = {top_of(package) for package in PACKAGES}


def imported_tops(package, folder):
    paths = (package / folder).rglob("*.py")
    return {name.partition(".")[0] for path in paths for name in find_imports(path)}


@EACH
def test_its_files_are_those_of_a_package(package):
    project = read_project(package)
    assert project["name"] == package.name
    assert project["readme"] == "README.md"
    assert (package / top_of(package) / "py.typed").exists()
    assert list((package / "tests").glob("test_*.py"))
    page = (package / "README.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {package.name}\n")
    assert re.search(r"Installed .*\d MB", page)


@EACH
def test_it_imports_nothing_of_the_project_nor_do_its_tests(package):
    allowed = {"__future__", top_of(package)} | {
        re.sub("-", "_", name) for name in requirements_among_ours(package)
    }
    for folder in (top_of(package), "tests"):
        tops = imported_tops(package, folder)
        assert not tops & {"iscp_dagster", "assets", "resources", "bench"}
        assert tops & OURS <= allowed
    assert "support" not in imported_tops(package, "tests")


def requirements_among_ours(package):
    project = read_project(package)
    extras = project.get("optional-dependencies", {}).values()
    asked = [*project.get("dependencies", ()), *(each for extra in extras for each in extra)]
    names = {re.match(r"[\w.-]+", each)[0] for each in asked} - {package.name}
    return names & {other.name for other in PACKAGES}


def test_packages_that_need_each_other_make_no_circle():
    needs = {package.name: requirements_among_ours(package) for package in PACKAGES}
    TopologicalSorter(needs).prepare()


@EACH
def test_it_asks_for_what_it_imports(package):
    project = read_project(package)
    extras = {
        each
        for name, some in project.get("optional-dependencies", {}).items()
        if name != "test"
        for each in some
    }
    asked = list_brought([*project.get("dependencies", ()), *extras])
    tops = imported_tops(package, top_of(package))
    assert tops - asked - {top_of(package)} - sys.stdlib_module_names == set()


def test_the_project_asks_for_each_by_its_version():
    extras = read_project(ROOT)["optional-dependencies"].values()
    asked = {*read_project(ROOT)["dependencies"], *(each for extra in extras for each in extra)}
    for package in PACKAGES:
        assert f"{package.name}=={read_project(package)['version']}" in asked


def test_they_are_checked_like_the_project():
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    typed = {f"packages/{package.name}/{top_of(package)}" for package in PACKAGES}
    assert typed <= set(tools["mypy"]["files"])
    assert tools["pytest"]["ini_options"]["testpaths"] == ["tests", "packages"]


@EACH
def test_nothing_in_it_makes_a_circle(package):
    modules = find_modules(package / top_of(package))
    arrows = [
        (module, target)
        for module, path in modules.items()
        for target in find_imports(path, modules)
        if target in modules
    ]
    for folder in {top_of(package), *(module.rpartition(".")[0] for module in modules)} - {""}:
        check_beside(folder, arrows)


@pytest.mark.parametrize("pure", ["idempotent_receiver", "chdb_http.sql.parse"])
def test_what_is_pure_imports_no_edge(pure):
    code = f"import sys, {pure}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {module.partition(".")[0] for module in run.stdout.split()} & EDGES
