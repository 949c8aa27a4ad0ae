"""The README's walk through a table of the reader's, executed as it stands.

Its `python title="..."` blocks become files, its `sh` blocks are run, and a `text` block after one
is what that must print, at once or when the runner has done its work.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from stackfixture import (
    ROOT,
    SERVICES,
    Stack,
    clean_environment,
    copied_project,
    running_stack,
    wait_for,
)

from iscp_dagster.stack.settings import CLICKHOUSE, SPARK

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WALK = re.compile(r"^## Your own table in ten lines\n(.*?)^## ", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
FOLLOW_SECONDS = 120
COMMAND_SECONDS = 120


@dataclass(frozen=True, kw_only=True)
class Block:
    language: str
    title: str
    text: str


def walk() -> list[Block]:
    section = WALK.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert section is not None
    return [
        Block(language=language, title=title, text=text)
        for language, title, text in BLOCK.findall(section[1])
    ]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Does what the README says in a copy of the project, with this machine's addresses."""

    folder: Path
    lake: Path
    stack: Stack

    def do(self, blocks: list[Block]) -> None:
        for block, after in zip(blocks, [*blocks[1:], None], strict=True):
            if block.title:
                (self.folder / block.title).write_text(self.here(block.text), encoding="utf-8")
            elif block.language == "sh" and after is not None and after.language == "text":
                self.see(block.text, after.text)
            elif block.language == "sh":
                done = self.run(block.text)
                assert done.returncode == 0, done.stdout + done.stderr

    def here(self, text: str) -> str:
        python = shlex.quote(sys.executable)
        places = {
            "./iscp": f"{python} -m iscp_dagster.cli",
            ".venv/bin/python": python,
            "http://127.0.0.1:8123": self.stack.service(CLICKHOUSE).address,
            "sc://127.0.0.1:15002": self.stack.service(SPARK).address,
            "http://127.0.0.1:3000": self.stack.dagster_url,
            "/tmp/lake": str(self.lake),
        }
        # In one pass: what stands in for one place may hold another.
        written = re.compile("|".join(map(re.escape, places)))
        return written.sub(lambda found: places[found[0]], text)

    def run(self, commands: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euc", self.here(commands)],
            cwd=self.folder,
            env=environment(self.folder),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )

    def see(self, commands: str, expected: str) -> None:
        """Run a harmless command until it prints what is expected."""
        said = ""

        def printed() -> bool:
            nonlocal said
            done = self.run(commands)
            said = done.stdout + done.stderr
            return plain(done.stdout) == plain(expected)

        wait_for(printed, FOLLOW_SECONDS, lambda: f"{commands}\n{said}\n{self.logs()}")

    def logs(self) -> str:
        return self.stack.home.joinpath("logs", "dagster.log").read_text(errors="replace")[-4_000:]


def environment(folder: Path) -> dict[str, str]:
    """A shell in the copy: its code is imported, and no proxy stands before this machine."""
    here = {"PYTHONPATH": str(folder), "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
    return clean_environment(folder / ".iscp", os.environ) | here


def plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@pytest.fixture
def project(tmp_path):
    """A copy of the project, without what was declared beside it."""
    return copied_project(tmp_path / "project")


def test_the_walk_declares_asks_changes_and_verifies():
    blocks = walk()
    assert "assets/tickets.py" in [block.title for block in blocks]
    declaration = next(block.text for block in blocks if block.title == "assets/tickets.py")
    assert len(declaration.strip().splitlines()) <= 10
    outputs = [block for block in blocks if block.language == "text"]
    assert len(outputs) >= 7


def test_the_walk_works_as_written(project, tmp_path):
    extra = {"PYTHONPATH": str(project), "ISCP_SCAN_SECONDS": "1"}
    with running_stack(project / ".iscp", SERVICES, extra=extra) as stack:
        reader = Reader(folder=project, lake=tmp_path / "lake", stack=stack)
        reader.do(walk())
