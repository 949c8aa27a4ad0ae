"""The launcher's decisions, without making an environment."""

from __future__ import annotations

import ast
import json
import sys
from importlib.machinery import SourceFileLoader
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from support.errors import assert_names, raises_naming
from support.paths import ROOT

LAUNCHER = ROOT / "iscp"


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Load the launcher as a module, for a project in a separate folder."""
    loader = SourceFileLoader("iscp_launcher", str(LAUNCHER))
    module = module_from_spec(spec_from_loader(loader.name, loader))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader.exec_module(module)
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    places = {"ROOT": tmp_path, "VENV": venv, "PYTHON": venv / "bin" / "python"}
    places |= {"STAMP": venv / "stamp.json", "COPYING": venv / "copying"}
    for name, place in places.items():
        monkeypatch.setattr(module, name, str(place))
    return module


def test_it_is_executable_and_names_no_fixed_python() -> None:
    assert LAUNCHER.stat().st_mode & 0o111
    assert LAUNCHER.read_text().startswith("#!/usr/bin/env python3\n")


def test_an_old_python_can_still_read_it() -> None:
    tree = ast.parse(LAUNCHER.read_text(), feature_version=(3, 6))
    newer = (ast.JoinedStr, ast.NamedExpr, ast.AnnAssign, ast.AsyncFunctionDef)
    assert not [node for node in ast.walk(tree) if isinstance(node, newer)]
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        assert not function.args.kwonlyargs
        assert function.returns is None


def test_a_python_that_is_too_old_is_one_line(launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher.sys, "version_info", (3, 6, 15))
    monkeypatch.setattr(launcher, "suits", lambda _: False)
    oldest = "Python {}.{}".format(*launcher.OLDEST)
    with raises_naming(launcher.SetupProblem, "Python 3.6", oldest, "ISCP_PYTHON"):
        launcher.find_python()


def test_the_oldest_python_is_what_the_project_asks_for(launcher) -> None:
    oldest = "{}.{}".format(*launcher.OLDEST)
    assert distribution("iscp_dagster").metadata["Requires-Python"] == f">={oldest}"
    assert f"Python {oldest} or newer" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_each_package_runs_on_the_oldest_python(launcher) -> None:
    if sys.version_info[:2] != launcher.OLDEST:
        pytest.skip("a newer Python gets newer versions of the packages")
    oldest = "{}.{}.0".format(*launcher.OLDEST)
    metadata = [package.metadata for package in list_distributions()]
    pythons = {each["Name"]: each["Requires-Python"] for each in metadata}
    assert not {
        name: spec for name, spec in pythons.items() if spec and oldest not in SpecifierSet(spec)
    }


def list_distributions():
    """Yield the project's distribution and each that it needs, with every extra, as installed."""
    seen, todo = set(), ["iscp_dagster"]
    while todo:
        name = todo.pop()
        if canonicalize_name(name) in seen:
            continue
        seen.add(canonicalize_name(name))
        try:
            package = distribution(name)
        except PackageNotFoundError:  # Of an extra of theirs, or of another system.
            continue
        yield package
        todo += [Requirement(text).name for text in package.requires or ()]


def test_an_old_python_hands_over_to_a_newer_one(launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    monkeypatch.setattr(launcher.sys, "version_info", (2, 7, 18))
    monkeypatch.setattr(launcher, "suits", lambda name: name == "python3.11")
    monkeypatch.setattr(launcher, "run_again_with", lambda name: chosen.append(name) or sys.exit())
    with pytest.raises(SystemExit):
        launcher.find_python()
    assert chosen == ["python3.11"]


def test_a_python_that_was_named_must_suit(launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISCP_PYTHON", "/no/such/python")
    with raises_naming(launcher.SetupProblem, "ISCP_PYTHON=/no/such/python"):
        launcher.follow_wish()
    assert launcher.suits(sys.executable)


def test_a_python_without_venv_is_one_line(launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with raises_naming(launcher.SetupProblem, sys.executable, "ensurepip", "python3-venv"):
        launcher.require_venv()


@pytest.mark.parametrize(
    ("arguments", "extras"),
    [(["test"], ["test"]), (["test", "-q"], ["test"]), (["test", "--help"], []), (["up"], [])],
)
def test_help_installs_nothing_for_tests(launcher, monkeypatch, arguments, extras) -> None:
    calls = []
    monkeypatch.setattr(launcher, "is_ready", lambda names: calls.append(names) or True)
    monkeypatch.setattr(launcher.os, "execv", lambda *_: None)
    launcher.main(arguments)
    assert calls == [["demo", "local", "postgres", *extras]]


def test_a_completion_sets_nothing_up(launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_ISCP_COMPLETE", "complete_bash")
    monkeypatch.setattr(launcher, "set_up", lambda _: pytest.fail("a set-up began"))
    assert launcher.main([]) is None


def test_it_is_ready_until_something_changes(launcher) -> None:
    package = Path(launcher.ROOT, "packages", "small")
    package.mkdir(parents=True)
    (package / "pyproject.toml").write_text("[project]\nname = 'small'\n")
    assert launcher.packages() == [str(package)]
    assert not launcher.is_ready([])
    launcher.write_stamp([])
    assert launcher.is_ready([])
    assert not launcher.is_ready(["test"])
    for folder in (package, Path(launcher.ROOT)):
        launcher.write_stamp(["test"])
        assert launcher.is_ready([])
        (folder / "pyproject.toml").write_text("[project]\nname = 'other'\n")
        assert not launcher.is_ready([])


@pytest.mark.parametrize("key", ["root", "python"])
def test_a_moved_project_or_a_replaced_python_is_set_up_anew(launcher, key: str) -> None:
    launcher.write_stamp([])
    stamp = json.loads(Path(launcher.STAMP).read_text())
    Path(launcher.STAMP).write_text(json.dumps(stamp | {key: "/elsewhere"}))
    assert not launcher.is_ready([])
    # Half a stamp is no stamp.
    Path(launcher.STAMP).write_text('{"pyproject": ')
    assert not launcher.is_ready([])


@pytest.mark.parametrize(
    ("output", "value"),
    [
        ("OSError: [Errno 28] No space left on device", "disk"),
        (
            "WARNING: Retrying: NewConnectionError\nERROR: No matching distribution found for x",
            "registry",
        ),
        ("ERROR: HTTP error\nERROR: Could not find a version of x", "Could not find a version"),
        ("", "no message"),
    ],
)
def test_a_failure_is_explained_in_one_line(launcher, output: str, value: str) -> None:
    explanation = launcher.explain(output)
    assert_names(explanation, value)
    assert "\n" not in explanation


def test_progress_stays_in_one_line_of_the_terminal(launcher, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    progress = launcher.Progress("installing")
    progress.terminal = True
    progress.hear("Downloading clickhouse_connect-1.12.0-cp313-cp313-" + "manylinux" * 9)
    shown = capsys.readouterr().err.rpartition("\x1b[K")[2]
    assert len(shown) == 79
    assert shown.startswith("downloading clickhouse_connect-1.12.0")
    assert shown.endswith(" (0 packages, 0 s)")


def test_progress_is_plain_lines_when_it_is_not_on_a_terminal(launcher, capfd) -> None:
    progress = launcher.Progress("installing")
    progress.terminal = False
    progress.shown -= launcher.HEARTBEAT_SECONDS
    progress.hear("Collecting dagster==1.13\n")
    progress.hear("Collecting rich\n")
    assert capfd.readouterr().err == "iscp: found dagster==1.13 (1 packages, 0 s)\n"


def test_a_stop_while_packages_are_copied_is_remembered(launcher) -> None:
    launcher.Progress("installing").hear("Installing collected packages: a, b\n")
    assert Path(launcher.COPYING).exists()
