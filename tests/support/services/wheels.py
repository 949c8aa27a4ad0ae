"""The project's distributions as wheels, installed in a virtual environment of their own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from zipfile import Path as ZipPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.paths import PACKAGES, ROOT


def install_wheels(folder: Path, *asked: str, projects: Sequence[Path] = (ROOT, *PACKAGES)) -> Path:
    """Install the requirements, some of which are the project's own; return the venv's `bin`.

    What they require comes from this environment, but nothing else, nor the project itself, whose
    distributions are built from `projects`.
    """
    python, wheels = folder / "venv" / "bin" / "python", folder / "wheels"
    build = ("wheel", "--no-deps", "--no-build-isolation", "-w", wheels, *projects)
    subprocess.run([sys.executable, "-m", "pip", "-q", *build], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    answer = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True)
    built = dict(map(_read_wheel, wheels.glob("*.whl")))
    for required in _find_required([Requirement(each) for each in asked], built):
        _link_packages(required, Path(answer.stdout.strip()))
        _write_commands(required, python)
    # Without an index pip refuses what the wheels ask for and the environment lacks.
    install = ("--python", python, "install", "-q", "--no-index", "--find-links", wheels, *asked)
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    return python.parent


def _read_wheel(wheel: Path) -> tuple[str, Distribution]:
    (info,) = (path for path in ZipPath(wheel).iterdir() if path.name.endswith(".dist-info"))
    built = PathDistribution(info)
    return canonicalize_name(built.metadata["Name"]), built


def _find_required(asked: list[Requirement], built: dict[str, Distribution]) -> list[Distribution]:
    """Return the installed distributions that pip would install besides the built wheels."""
    required, seen = dict[str, Distribution](), set[tuple[str, str]]()
    todo = [(each, "") for each in asked]
    while todo:
        requirement, for_extra = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": for_extra}):
            continue
        name = canonicalize_name(requirement.name)
        found = built.get(name) or required.setdefault(name, distribution(name))
        for extra in {"", *requirement.extras} - {e for other, e in seen if other == name}:
            seen.add((name, extra))
            todo += [(Requirement(each), extra) for each in found.requires or ()]
    return list(required.values())


def _link_packages(installed: Distribution, packages: Path) -> None:
    names = {path.parts[0] for path in installed.files or () if path.suffix != ".pth"}
    for name in names - {"..", "__pycache__"}:
        if not (packages / name).is_symlink():
            (packages / name).symlink_to(Path(sysconfig.get_path("purelib"), name))


def _write_commands(installed: Distribution, python: Path) -> None:
    for point in installed.entry_points.select(group="console_scripts"):
        command = python.with_name(point.name)
        code = f"import sys\nfrom {point.module} import {point.attr}\nsys.exit({point.attr}())\n"
        command.write_text(f"#!{python}\n{code}")
        command.chmod(0o755)
