"""What the commands print fits a terminal of 80 columns."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from assets.docs import symbols
from iscp_dagster.commands import show
from iscp_dagster.commands.progress import telling
from iscp_dagster.engine.comparison import Comparison
from iscp_dagster.engine.verify import Verdict


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def verdict(**changes):
    values = {"index": "mirror", "tenant": "clickhouse-connect", "version": 12, "rows": 11_049}
    return Verdict(**(values | changes))


def test_a_verdict_is_one_line(capsys):
    show.comparison(Comparison(verdicts=[(symbols, verdict())]), as_json=False)
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split() == [
        *("index", "tenant", "version", "rows", "missing", "extra", "differ", "agrees")
    ]
    assert line.split() == [
        *("symbols/mirror", "clickhouse-connect", "12", "11,049", "0", "0", "0", "yes")
    ]


def test_what_differs_is_named(capsys):
    show.comparison(
        Comparison(verdicts=[(symbols, verdict(missing=2, samples=("a.b", "c.d")))]), as_json=False
    )
    said = capsys.readouterr().out
    assert "symbols/mirror, clickhouse-connect: look at a.b; c.d" in said
    assert max(map(len, said.splitlines())) <= 80


def test_json_has_every_count(capsys):
    show.comparison(Comparison(verdicts=[(symbols, verdict(extra=1))]), as_json=True)
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["table"], row["extra"], row["agrees"]) == ("docs.symbols", 1, False)


def test_what_is_being_done_is_told_to_a_terminal_alone():
    for terminal in (True, False):
        out = io.StringIO()
        with telling(Console(file=out, force_terminal=terminal, width=80)) as tell:
            tell("comparing docs.symbols/[odd], a and 2 more, at version 3")
        assert ("comparing docs.symbols/[odd], a and 2 more" in out.getvalue()) is terminal
        assert terminal or out.getvalue() == ""


@pytest.mark.parametrize(
    ("found", "differs", "whole"),
    [
        (Comparison(), False, False),
        (Comparison(verdicts=[(symbols, verdict())]), False, True),
        (Comparison(verdicts=[(symbols, verdict())], unbuilt=["a/b, c"]), False, False),
        (Comparison(verdicts=[(symbols, verdict(extra=1))], unbuilt=["a/b, c"]), True, False),
    ],
)
def test_what_differs_is_told_from_what_was_not_compared(found, differs, whole):
    assert (found.differs, found.whole) == (differs, whole)
