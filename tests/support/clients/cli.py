"""Runs `iscp` in the test's process, and reads what it prints."""

import json
import sys
from dataclasses import dataclass

import pytest

from iscp_dagster.cli import main as cli


@dataclass(frozen=True)
class CommandLine:
    """Runs commands of `iscp`, each of which begins with the words `group`."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    group: tuple[str, ...] = ()

    def __call__(self, *arguments):
        """Run a command; return its exit code and output."""
        self.monkeypatch.setattr(sys, "argv", ["iscp", *self.group, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, "".join(self.capsys.readouterr())

    def read_text(self, *arguments):
        """Return the output of a command that must succeed and fit 80 columns."""
        text = self._read(0, arguments)
        assert max(map(len, text.splitlines())) <= 80, text
        return text

    def read_failure(self, *arguments, status=1):
        """Return the output of a command that must fail with this exit code."""
        return self._read(status, arguments)

    def read_json(self, *arguments, status=0):
        """Return the JSON output of a command that must end with this exit code."""
        return json.loads(self._read(status, (*arguments, "--json")))

    def _read(self, status, arguments):
        code, text = self(*arguments)
        assert code == status, text
        return text
