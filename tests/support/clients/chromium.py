"""A headless Chromium, driven over a pipe by the DevTools protocol, for tests that read pages."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.services.stack import wait_for

NAMES = ("chromium", "chromium-browser", "google-chrome")
ANSWER_SECONDS = 60.0
PAGE_SECONDS = 120.0
_OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    # As root it has no sandbox; it shows nothing but the stack's own pages.
    "--no-sandbox",
    "--no-proxy-server",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--window-size=1400,900",
)
# Chromium takes commands from descriptor 3 and answers to 4.
_TO_3_AND_4 = 'exec "$@" 3<&0 4>&1 0</dev/null 1>&2'


def found() -> str | None:
    """Return the program, if this machine has one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@dataclass(kw_only=True)
class Chromium:
    """One page of a running Chromium, and what went wrong in it."""

    process: subprocess.Popen[bytes]
    session: str | None = None
    errors: list[str] = field(default_factory=list)
    _unread: bytes = b""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def read(self, url: str, shows: Callable[[str], bool]) -> str:
        """Open the page; return its text once it satisfies `shows`."""
        self.call("Page.navigate", url=url)
        return self.wait(shows)

    def wait(self, shows: Callable[[str], bool]) -> str:
        """Return the page's text once it satisfies `shows`."""
        text = ""

        def read_text() -> bool:
            nonlocal text
            text = self.evaluate("document.body ? document.body.innerText : ''")
            return shows(text)

        wait_for(read_text, PAGE_SECONDS, lambda: f"The page shows:\n{text}\n{self.errors}")
        return text

    def evaluate(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression)["result"].get("value")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to one command; keep the errors that arrive before it."""
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": parameters}
        command |= {"sessionId": self.session} if self.session else {}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\0")
        self.process.stdin.flush()
        deadline = time.monotonic() + ANSWER_SECONDS
        while (message := self._read_message(deadline)).get("id") != number:
            self._keep_error(message)
        assert "error" not in message, message
        return dict(message["result"])

    def _read_message(self, deadline: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        pipe = self.process.stdout.fileno()
        while b"\0" not in self._unread:
            ready, _, _ = select.select([pipe], [], [], max(0, deadline - time.monotonic()))
            assert ready, "Chromium does not answer"
            part = os.read(pipe, 1 << 16)
            assert part, "Chromium has ended"
            self._unread += part
        first, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(first))

    def _keep_error(self, message: dict[str, Any]) -> None:
        match message:
            case {"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": details}}:
                self.errors.append(str(details))
            case {
                "method": "Runtime.consoleAPICalled",
                "params": {"type": "error", "args": arguments},
            }:
                self.errors.append(str(arguments))
            case {"method": "Log.entryAdded", "params": {"entry": {"level": "error"} as entry}}:
                self.errors.append(f"{entry['text']} {entry.get('url', '')}")


@contextmanager
def running(program: str, folder: Path) -> Iterator[Chromium]:
    """Run Chromium with its files in `folder`; it ends with the block, or with this process."""
    command = [program, *_OPTIONS, f"--user-data-dir={folder / 'profile'}"]
    with (
        (folder / "chromium.log").open("wb") as log,
        subprocess.Popen(
            ["/bin/sh", "-c", _TO_3_AND_4, "sh", *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "HOME": str(folder)},
        ) as process,
    ):
        try:
            browser = Chromium(process=process)
            target = browser.call("Target.createTarget", url="about:blank")["targetId"]
            attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
            browser.session = attached["sessionId"]
            for domain in ("Log", "Runtime"):
                browser.call(f"{domain}.enable")
            yield browser
        finally:
            process.stdin.close()
            process.wait(ANSWER_SECONDS)
