"""The launcher really sets up a small project: a virtual environment, pip, and the command.

The project and its one package build with a backend of their own, so that nothing is fetched.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from support.errors import assert_names
from support.paths import ROOT
from support.services.stack import wait_for

LAUNCHER = ROOT / "iscp"

_PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "small"
version = "1"
"""
_BACKEND = """
import zipfile
{pause}
def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "small-1-py3-none-any.whl"
    info = "small-1.dist-info/"
    files = {
        "small.pth": {root!r},
        info + "METADATA": "Metadata-Version: 2.1\\nName: small\\nVersion: 1\\n{needs}",
        info + "WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        info + "entry_points.txt": "[console_scripts]\\niscp = small:main\\n",
    }
    record = "".join(path + ",,\\n" for path in files) + info + "RECORD,,\\n"
    with zipfile.ZipFile(folder + "/" + name, "w") as wheel:
        for path, text in {**files, info + "RECORD": record}.items():
            wheel.writestr(path, text)
    return name
"""
WAITING = """
import os, pathlib, time
pathlib.Path({mark!r}).write_text(str(os.getpid()))
time.sleep(600)
"""
_COMMAND = """
import json, os, part, sys
def main():
    told = {"arguments": sys.argv[1:], "cwd": os.getcwd(), "prefix": sys.prefix}
    print(json.dumps(told | {"part": part.__file__}))
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Set up a project in a folder with a space in its name; pip's files stay there."""
    root = tmp_path_factory.mktemp("launcher") / "a project"
    root.mkdir()
    shutil.copy2(LAUNCHER, root / "iscp")
    (root / "small.py").write_text(_COMMAND)
    part = root / "packages" / "part"
    part.mkdir(parents=True)
    (part / "part.py").touch()
    (part / "pyproject.toml").write_text(_PYPROJECT.replace("small", "part"))
    backend = _BACKEND.replace("small:main", "").replace("[console_scripts]\\niscp = ", "")
    write_backend(part, backend=backend.replace("small", "part"), needs="")
    # What a set-up leaves whose Python was removed.
    (root / ".venv" / "lib").mkdir(parents=True)
    return root


@pytest.fixture
def project(shared: Path) -> Path:
    """Return the same project, changed since it was last set up."""
    (shared / "pyproject.toml").write_text(f"{_PYPROJECT}# {uuid4()}\n")
    write_backend(shared)
    return shared


def write_backend(
    root: Path, pause: str = "", needs: str = "Requires-Dist: part==1\\n", backend: str = _BACKEND
) -> None:
    text = backend.replace("{pause}", pause).replace("{needs}", needs)
    (root / "backend.py").write_text(text.replace("{root!r}", repr(str(root))))


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return kept | {"PIP_CONFIG_FILE": os.devnull, "ISCP_PYTHON": sys.executable} | extra


def run(root: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [root / "iscp", *arguments],
        cwd=root.parent,
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.soak
def test_two_at_once_set_up_once_and_again_when_the_project_changed(project: Path) -> None:
    processes = [
        subprocess.Popen(
            [project / "iscp", "status", "a b"],
            cwd=project.parent,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert sum("making .venv" in errors for _, errors in outputs) == 1
    for output, _ in outputs:
        facts = json.loads(output)
        assert facts["arguments"] == ["status", "a b"]
        assert facts["cwd"] == str(project.parent)
        assert Path(facts["prefix"]) == project / ".venv"
        assert Path(facts["part"]) == project / "packages" / "part" / "part.py"

    again = run(project)
    assert (again.returncode, again.stderr) == (0, "")

    (project / "pyproject.toml").write_text(_PYPROJECT + "# changed\n")
    changed = run(project)
    assert changed.returncode == 0
    assert "making .venv" not in changed.stderr
    assert "installing" in changed.stderr


@pytest.mark.soak
def test_it_is_safe_to_interrupt(project: Path) -> None:
    mark = project / "building"
    for number in (signal.SIGINT, signal.SIGTERM):
        mark.unlink(missing_ok=True)
        write_backend(project, pause=WAITING.format(mark=str(mark)))
        with subprocess.Popen(
            [project / "iscp"],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            wait_for(lambda: mark.exists() and mark.read_text(), 120)
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert_names(errors.splitlines()[-1], "iscp", "interrupted")
        assert "Traceback" not in errors
        building = Path("/proc", mark.read_text())
        wait_for(lambda building=building: not building.exists(), 60)

    write_backend(project)
    assert run(project).returncode == 0


def test_a_registry_that_cannot_be_reached_is_one_line(project: Path) -> None:
    write_backend(project, needs="Requires-Dist: nothing-of-this-name\\n")
    failed = run(
        project, PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="1", PIP_NO_CACHE_DIR="1"
    )
    assert failed.returncode == 1
    assert failed.stdout == ""
    last = failed.stderr.splitlines()[-1]
    assert_names(last, "iscp", "registry")
    assert "Traceback" not in failed.stderr
