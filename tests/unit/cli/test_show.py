"""The output of commands fits a terminal of 80 columns."""

import io
import json
import re
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from rich.console import Console

from assets.docs import symbols
from iscp_dagster.cli import verdicts
from iscp_dagster.cli.dlq import show as dlq_show
from iscp_dagster.cli.jobs import show as job_show
from iscp_dagster.cli.parts.progress import show_progress
from iscp_dagster.cli.parts.sanitizing import escape_control_chars
from iscp_dagster.clickhouse.write.letters import DeadLetter
from iscp_dagster.joblog.history import Usage
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.jobs import JobID, JobStatus
from iscp_dagster.planning.problems import Problem
from iscp_dagster.upkeep.dead_letters import ReplayOutcome
from iscp_dagster.upkeep.verify_indexes import IndexVerdict
from iscp_dagster.upkeep.verify_tables import ComparisonResult, UnbuiltIndex
from support.errors import assert_names


def make_verdict(**changes):
    values = {"index": "mirror", "tenant": "clickhouse-connect", "version": 12, "rows": 11_049}
    return symbols, IndexVerdict(**(values | changes))


def make_unbuilt(tenant="c", error=None):
    return symbols, UnbuiltIndex(index="mirror", tenant=tenant, error=error)


def make_usage(**changes):
    name = JobID(db="docs", table="symbols", job="mirror")
    values = {"tenant": "rich", "name": name, "iterations": 12, "bytes": 9_876_543}
    return Usage(**(values | changes))


def print_comparison(capsys, *, as_json=False, differs=False, **results):
    """Return the lines that are printed of a comparison, or the rows of its JSON."""
    verdicts.print_comparison(ComparisonResult(**results), as_json=as_json, differs=differs)
    text = capsys.readouterr().out
    return json.loads(text) if as_json else text.splitlines()


def test_a_verdict_is_one_line(capsys):
    lines = print_comparison(capsys, verdicts=[make_verdict(tenant="matplotlib")])
    counts, heads, line = lines
    assert counts == "1 comparison: 1 agree, 11,049 rows in all"
    names = ["index", "tenant", "version", "rows", "missing", "extra", "differ", "agrees"]
    values = ["docs.symbols/mirror", "matplotlib", "12", "11,049", "0", "0", "0", "yes"]
    assert (heads.split(), line.split()) == (names, values)


def test_what_differs_is_named(capsys):
    verdict = make_verdict(extra=3, samples=("the row with id = 1 is not in the source",))
    *lines, last = print_comparison(capsys, verdicts=[verdict])
    sample = verdict[1].samples[0]
    assert last.startswith(f"docs.symbols/mirror, tenant clickhouse-connect: {sample}")
    assert last.endswith("; and 2 more")
    assert max(map(len, lines)) <= 80
    (row,) = print_comparison(capsys, verdicts=[verdict], as_json=True)
    assert (row["index"], row["extra"], row["agrees"]) == ("docs.symbols/mirror", 3, False)


def test_what_differs_comes_first_of_many_and_can_be_chosen(capsys):
    results = {
        "verdicts": [
            *(make_verdict(tenant=f"t{number}") for number in range(900)),
            make_verdict(tenant="odd", extra=1, samples=("a.b",)),
        ],
        "unbuilt": [make_unbuilt(f"u{number}") for number in range(20)],
    }
    counts, _, first, *lines = print_comparison(capsys, **results)
    assert counts == (
        "901 comparisons: 1 differ, 900 agree, 20 not built yet, 9,955,149 rows in all"
    )
    assert first.split()[1] == "odd"
    assert len(lines) == 99 + 3
    assert_names(lines[-2], "100 of 901", "--limit", "--differs")
    assert lines[-1].startswith("docs.symbols/mirror, tenants u0, u1, u10")
    assert lines[-1].endswith("and 10 more: not built yet")
    _, _, row, sample, not_built = print_comparison(capsys, **results, differs=True)
    assert (row.split()[1], sample[-3:], not_built) == ("odd", "a.b", lines[-1])
    assert len(print_comparison(capsys, **results, as_json=True)) == 921
    assert len(print_comparison(capsys, **results, as_json=True, differs=True)) == 21


def test_a_row_is_one_whole_line_when_piped(capsys, piped):
    long = "t" * 200 + "\nx"
    _, heads, row = print_comparison(capsys, verdicts=[make_verdict(tenant=long)])
    assert row.split("\t")[1] == "t" * 200 + "\\nx"
    assert heads.split("\t").index("agrees") == row.split("\t").index("yes")
    job_show.print_usage([make_usage(failed=1, canceled=2, tenant=long), make_usage(tenant=" ")])
    _, _, row, odd = capsys.readouterr().out.splitlines()
    assert ("\\nx" in row, "' '" in odd) == (True, True)
    letter = replace(LETTER, tenant="名" * 50, reason="why " * 30)
    dlq_show.print_letters([letter], as_json=False)
    counts, heads, row = capsys.readouterr().out.splitlines()
    assert counts.startswith("1 dead letter: 1 of ")
    assert "名" * 50 in row
    assert row.endswith("why " * 29 + "why ")


def test_a_letter_s_reason_takes_two_lines_of_a_terminal_at_most(capsys):
    reason = "docs.symbols/mirror: " + "the value of the column is not a number, " * 10
    letter = replace(LETTER, index="docs.symbols/mirror", tenant="eu", reason=reason)
    dlq_show.print_letters([letter], as_json=False)
    _, *heads, first, second = capsys.readouterr().out.splitlines()
    assert len(heads) == 2
    assert first.split()[:4] == ["00000000", "docs.symbols/mirror", "1", "the"]
    assert second.split()[:2] == ["eu", "10300"]
    assert second.rstrip().endswith("...")


FAILED = JobStatus(code=10_300, message="column 'x' has no type")
ODD = "[/x] [red]a\x1b]52;c;QQ==\x07\x9b2J\r\nb"
WRITTEN_OUT = "[/x] [red]a\\x1b]52;c;QQ==\\x07\\x9b2J\\x0d"
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
TEXTS = dict.fromkeys(("index", "tenant", "reason", "row"), ODD)
PLACE = {"registration": 1, "from_version": 0, "to_version": 1, "task": 0, "chunk": 0}
ROW = {"deleted": False, "version": 1, "timestamp": NOON, "epoch": 1}
LETTER = DeadLetter(id="0" * 32, code=10_300, at=NOON, **TEXTS, **PLACE, **ROW)


@pytest.mark.parametrize(
    "print_",
    [
        lambda: verdicts.print_comparison(
            ComparisonResult(
                verdicts=[make_verdict(tenant=ODD, missing=1, samples=(ODD,), dead=1)],
                unbuilt=[make_unbuilt(ODD)],
                problems=[Problem(table="a.b", message=ODD, fingerprint="")],
            ),
            as_json=False,
        ),
        lambda: job_show.line(ODD),
        lambda: job_show.print_usage([make_usage(tenant=ODD)]),
        lambda: dlq_show.print_letters([LETTER], as_json=False),
        lambda: dlq_show.print_letter_facts([LETTER], as_json=False),
    ],
)
def test_texts_of_others_do_not_control_a_terminal(capsys, monkeypatch, print_):
    monkeypatch.setenv("COLUMNS", "400")
    print_()
    text = capsys.readouterr().out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert WRITTEN_OUT in text


def test_usage_is_one_line_a_job_where_that_fits(capsys):
    job_show.print_usage([make_usage(inserted=1_234), make_usage(tenant="two\nlines")])
    _, heads, rich, odd = capsys.readouterr().out.splitlines()
    assert heads.split() == ["job", "tenant", "iterations", "inserted", "bytes", "seconds"]
    assert rich.split() == ["docs.symbols/mirror", "rich", "12", "1,234", "9,876,543", "0.0"]
    assert r"two\nlines" in odd
    usage = make_usage(failed=1, canceled=2, deleted=3, tenant="clickhouse-connect")
    job_show.print_usage([usage])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert max(map(len, lines)) <= 80
    assert "canceled" in lines[2]


@pytest.mark.parametrize("print_", [dlq_show.print_letters, dlq_show.print_letter_facts])
def test_a_letter_s_job_is_no_number_for_json(capsys, print_):
    print_([replace(LETTER, registration=2**63 - 1)], as_json=True)
    (row,) = json.loads(capsys.readouterr().out)
    assert row["registration"] == str(2**63 - 1)


def test_the_outcome_of_a_letter_is_a_word_with_the_error_beside_it(capsys):
    error = IscpError("too long")
    results = ({"error": error}, {"rebuilt": True}, {"superseded": True}, {})
    outcomes = [ReplayOutcome(letter=LETTER, **each) for each in results]
    dlq_show.print_replay_results(outcomes, as_json=True)
    refused, *others = json.loads(capsys.readouterr().out)
    row = {"outcome": "refused", "code": IscpError.code, "message": "too long"}
    assert refused == {"id": LETTER.id, **row}
    assert [other["outcome"] for other in others] == ["rebuild", "dropped", "written"]
    assert {other["message"] for other in others} == {None}
    dlq_show.print_replay_results(outcomes[:1], as_json=False)
    assert_names(capsys.readouterr().out, "00000000", "refused", "too long", "0 replayed", "1 stay")


@pytest.mark.parametrize(
    ("text", "colours", "escaped"),
    [
        # An error keeps the colours of the log in it, and nothing else.
        ("\x1b[31mred\x1b[0m \x1b]0;x\x07", True, "\x1b[31mred\x1b[0m \\x1b]0;x\\x07"),
        # A name that turns the direction of text could look like another.
        ("a\u202egpj.exe\u2069 \u05d0\u200f", False, "a\\u202egpj.exe\\u2069 \u05d0\u200f"),
    ],
)
def test_what_controls_a_terminal_is_written_out(text, colours, escaped):
    assert escape_control_chars(text, colours=colours) == escaped


def test_what_is_in_error_stands_apart_from_what_is_not_built_yet(capsys):
    results = {
        "verdicts": [make_verdict(tenant="rich")],
        "unbuilt": [make_unbuilt(), make_unbuilt("a", FAILED), make_unbuilt("b", FAILED)],
    }
    counts, _, _, first, *lines = print_comparison(capsys, **results)
    assert counts == "1 comparison: 1 agree, 1 not built yet, 2 in error, 11,049 rows in all"
    assert first == "docs.symbols/mirror, tenant c: not built yet"
    error = f"in error 10300: {FAILED.message}"
    assert " ".join(lines) == f"docs.symbols/mirror, tenants a, b: {error}"
    built, *rows = print_comparison(capsys, **results, as_json=True)
    index = {"index": "docs.symbols/mirror", "agrees": False, "built": False}
    error = {"code": 10_300, "message": FAILED.message}
    assert rows == [
        index | {"tenant": "c", "code": 0, "message": ""},
        index | {"tenant": "a"} | error,
        index | {"tenant": "b"} | error,
    ]
    assert rows[0].keys() <= built.keys()
    assert (built["code"], built["message"]) == (0, "")


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_on_a_terminal_alone(terminal):
    out = io.StringIO()
    with show_progress(Console(file=out, force_terminal=terminal, width=80)) as report:
        report("comparing docs.symbols/[odd], a and 2 more, at version 3")
    assert ("comparing docs.symbols/[odd], a and 2 more" in out.getvalue()) is terminal
    assert terminal or out.getvalue() == ""


def test_a_long_wait_is_reported_now_and_then_elsewhere():
    out, now = io.StringIO(), [0.0]
    console = Console(file=out, width=80)
    with show_progress(console, seconds=10, monotonic=lambda: now[0]) as report:
        for second in range(40):
            now[0] = float(second)
            report(f"still to come in {2 if second < 25 else 1}\x1b")
    lines = [f"still to come in {number}\\x1b" for number in (2, 1)]
    assert out.getvalue().splitlines() == lines


@pytest.mark.parametrize(
    ("verdicts", "unbuilt", "differs", "complete"),
    [
        ([], [], False, False),
        ([make_verdict()], [], False, True),
        ([make_verdict()], [make_unbuilt()], False, False),
        ([make_verdict(extra=1)], [make_unbuilt()], True, False),
    ],
)
def test_a_result_tells_what_differs_from_what_was_not_compared(
    verdicts, unbuilt, differs, complete
):
    result = ComparisonResult(verdicts=verdicts, unbuilt=unbuilt)
    assert (result.differs, result.complete) == (differs, complete)
