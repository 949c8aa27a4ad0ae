"""Effects of handlers on the world, which tests count: lines of a file."""

from __future__ import annotations

from pathlib import Path


def note(file: str, line: str) -> str:
    """Append the line to the file; return it."""
    with Path(file).open("a", encoding="utf-8") as lines:
        lines.write(f"{line}\n")
    return line


def count(file: str, line: str) -> int:
    return Path(file).read_text().splitlines().count(line) if Path(file).exists() else 0
