"""The project's distributions as wheels, installed in a virtual environment of their own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from zipfile import Path as ZipPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.paths import PACKAGES, ROOT


def install_wheels(folder: Path, *asked: str) -> Path:
    """Install the requirements, some of which are the project's own; return the venv's `bin`.

    What they require comes from this environment, but nothing else, nor the project itself.
    """
    python, wheels = folder / "venv" / "bin" / "python", folder / "wheels"
    build = ("wheel", "--no-deps", "--no-build-isolation", "-w", wheels, ROOT, *PACKAGES)
    subprocess.run([sys.executable, "-m", "pip", "-q", *build], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    told = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True)
    built = dict(map(_read_wheel, wheels.glob("*.whl")))
    for held in _find_required([Requirement(each) for each in asked], built):
        _link(held, Path(told.stdout.strip()))
        _write_commands(held, python)
    # Without an index pip refuses what the wheels ask for and the environment lacks.
    install = ("--python", python, "install", "-q", "--no-index", "--find-links", wheels, *asked)
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    return python.parent


def _read_wheel(wheel: Path) -> tuple[str, Distribution]:
    (about,) = (each for each in ZipPath(wheel).iterdir() if each.name.endswith(".dist-info"))
    held = PathDistribution(about)
    return canonicalize_name(held.metadata["Name"]), held


def _find_required(asked: list[Requirement], built: dict[str, Distribution]) -> list[Distribution]:
    """Return what pip would install besides the wheels that were built, as it is installed here."""
    found, seen = dict[str, Distribution](), set[tuple[str, str]]()
    todo = [(each, "") for each in asked]
    while todo:
        wanted, wanted_by = todo.pop()
        if wanted.marker and not wanted.marker.evaluate({"extra": wanted_by}):
            continue
        name = canonicalize_name(wanted.name)
        held = built.get(name) or found.setdefault(name, distribution(name))
        for extra in {"", *wanted.extras} - {e for other, e in seen if other == name}:
            seen.add((name, extra))
            todo += [(Requirement(each), extra) for each in held.requires or ()]
    return list(found.values())


def _link(held: Distribution, packages: Path) -> None:
    names = {each.parts[0] for each in held.files or () if each.suffix != ".pth"}
    for name in names - {"..", "__pycache__"}:
        if not (packages / name).is_symlink():
            (packages / name).symlink_to(Path(sysconfig.get_path("purelib"), name))


def _write_commands(held: Distribution, python: Path) -> None:
    for point in held.entry_points.select(group="console_scripts"):
        command = python.with_name(point.name)
        called = f"import sys\nfrom {point.module} import {point.attr}\nsys.exit({point.attr}())\n"
        command.write_text(f"#!{python}\n{called}")
        command.chmod(0o755)
