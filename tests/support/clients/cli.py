"""Runs `iscp` in the test's process, and reads what it prints."""

import json
import sys

import pytest

from iscp_dagster.cli import main as cli


def run_command(capsys, monkeypatch, *arguments):
    """Run a command line; return its exit code and output."""
    monkeypatch.setattr(sys, "argv", ["iscp", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return ended.value.code or 0, out + err


def printed(iscp, *arguments):
    """Return the output of a command that must succeed and fit 80 columns."""
    code, said = iscp(*arguments)
    assert code == 0, said
    assert max(map(len, said.splitlines())) <= 80, said
    return said


def refused(iscp, *arguments, status=1):
    """Return the output of a command that must fail with this exit code."""
    code, said = iscp(*arguments)
    assert code == status, said
    return said


def found(iscp, *arguments):
    """Return the JSON output of a command that must succeed."""
    code, said = iscp(*arguments, "--json")
    assert code == 0, said
    return json.loads(said)
