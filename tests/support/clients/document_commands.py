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

from support.services.stack import wait_for

BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
GAP = re.compile(r"\t| {2,}")
FOLLOW_SECONDS = 300
COMMAND_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class Block:
    language: str
    title: str
    text: str


def blocks_of(section: str) -> list[Block]:
    """Return the blocks of a piece of Markdown."""
    return [
        Block(language=language, title=title, text=text)
        for language, title, text in BLOCK.findall(section)
    ]


def section(document: Path, heading: str) -> str:
    """Return the text below a heading of the second level, up to the next."""
    pattern = rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)"
    found = re.search(pattern, document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[1]


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
                self.see(block.text, after.text)
            elif block.language == "sh":
                done = self.run(block.text)
                assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{self.logs()}"

    def write(self, block: Block) -> None:
        (self.folder / block.title).write_text(self.here(block.text), encoding="utf-8")

    def here(self, text: str) -> str:
        # In one pass, since a replacement may contain another text to replace.
        written = re.compile("|".join(map(re.escape, self.places)))
        return written.sub(lambda found: self.places[found[0]], text)

    def run(self, commands: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euc", f"set -m\n{self.here(commands)}"],
            cwd=self.folder,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )

    def see(self, commands: str, expected: str) -> None:
        """Run a harmless command until it prints the expected text."""
        said = ""

        def printed() -> bool:
            nonlocal said
            done = self.run(commands)
            said = done.stdout + done.stderr
            return plain(done.stdout) == plain(expected)

        wait_for(printed, FOLLOW_SECONDS, lambda: f"{commands}\n{said}\n{self.logs()}")


def plain(text: str) -> str:
    """The text with one tab between columns, as pipes have them; a page shows a terminal's."""
    return "\n".join(GAP.sub("\t", line.rstrip()) for line in text.strip().splitlines())
