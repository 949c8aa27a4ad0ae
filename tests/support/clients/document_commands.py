"""Runs the commands of a document exactly as written.

Blocks with a title (`python title="…"`) become files, and `sh` blocks are run. A `text` block after
an `sh` block is its expected output, at once or when the runner has done its work. Blocks of other
languages are skipped.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from support.services.stack import wait_for

BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
GAP = re.compile(r"\t| {2,}")
FOLLOW_SECONDS = 300
COMMAND_SECONDS = 300


class Block(NamedTuple):
    language: str
    title: str
    text: str


def blocks_of(section: str) -> list[Block]:
    """Return the blocks of a piece of Markdown."""
    return [Block(*each) for each in BLOCK.findall(section)]


def section(document: Path, heading: str) -> str:
    """Return the text below a heading of the second level, up to the next."""
    pattern = rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)"
    match = re.search(pattern, document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert match is not None, heading
    return match[1]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Follows a document in `folder`, with the texts of `places` replaced."""

    folder: Path
    places: Mapping[str, str]
    environment: Mapping[str, str]
    logs: Callable[[], str]

    def do(self, blocks: list[Block]) -> None:
        for block, after in zip(blocks, [*blocks[1:], None], strict=True):
            if block.title:
                self.write(block)
            elif block.language == "sh" and after is not None and after.language == "text":
                self.wait_for_output(block.text, after.text)
            elif block.language == "sh":
                run = self.run(block.text)
                assert run.returncode == 0, f"{run.stdout}{run.stderr}\n{self.logs()}"

    def write(self, block: Block) -> None:
        (self.folder / block.title).write_text(self.fill_in(block.text), encoding="utf-8")

    def fill_in(self, text: str) -> str:
        """Replace the texts of `places`."""
        # In one pass, since a replacement may contain another text to replace.
        texts = re.compile("|".join(map(re.escape, self.places)))
        return texts.sub(lambda match: self.places[match[0]], text)

    def run(self, commands: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euc", f"set -m\n{self.fill_in(commands)}"],
            cwd=self.folder,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )

    def wait_for_output(self, commands: str, expected: str) -> None:
        """Run a harmless command until it prints the expected text."""
        output = ""

        def is_printed() -> bool:
            nonlocal output
            run = self.run(commands)
            output = run.stdout + run.stderr
            return put_tabs(run.stdout) == put_tabs(expected)

        wait_for(is_printed, FOLLOW_SECONDS, lambda: f"{commands}\n{output}\n{self.logs()}")


def put_tabs(text: str) -> str:
    """The text with one tab between columns, as pipes have them; a page shows a terminal's."""
    return "\n".join(GAP.sub("\t", line.rstrip()) for line in text.strip().splitlines())
