"""The package as a wheel, installed in a virtual environment of its own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from zipfile import Path as ZipPath

from packaging.requirements import Requirement
from places import ROOT


def install_wheel(folder: Path, extra: str = "", *, beside: tuple[str, ...] = ()) -> Path:
    """Install the wheel with one of its extras, and packages beside; return its `bin`.

    What they require comes from this environment, but nothing else, nor the project itself.
    """
    python = folder / "venv" / "bin" / "python"
    wheel = (*("wheel", "--no-deps", "--no-build-isolation", "-w"), str(folder), str(ROOT))
    subprocess.run([sys.executable, "-m", "pip", "-q", *wheel], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True)
    (built,) = folder.glob("*.whl")
    (about,) = (each for each in ZipPath(built).iterdir() if each.name.endswith(".dist-info"))
    asked = [(Requirement(each), extra) for each in PathDistribution(about).requires or ()]
    for held in _find_required([*asked, *((Requirement(each), "") for each in beside)]):
        _link(held, Path(own.stdout.strip()))
        _write_commands(held, python)
    # Without an index pip refuses what the wheel asks for and the environment lacks.
    named = f"{built}[{extra}]" if extra else str(built)
    install = ("--python", str(python), "install", "-q", "--no-index", named)
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    return python.parent


def _find_required(todo: list[tuple[Requirement, str]]) -> list[Distribution]:
    """Return what pip would install, as it is installed here."""
    found, seen = dict[str, Distribution](), set[tuple[str, str]]()
    while todo:
        asked, wanted_by = todo.pop()
        if asked.marker and not asked.marker.evaluate({"extra": wanted_by}):
            continue
        for extra in {"", *asked.extras} - {e for name, e in seen if name == asked.name}:
            seen.add((asked.name, extra))
            held = found.setdefault(asked.name, distribution(asked.name))
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
