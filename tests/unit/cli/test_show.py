"""The output of commands fits a terminal of 80 columns."""

import io
import json
import re
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from rich.console import Console

from assets.docs import symbols
from iscp_dagster.cli import show
from iscp_dagster.cli.dlq import show as dlq_show
from iscp_dagster.cli.jobs import show as job_show
from iscp_dagster.cli.parts.progress import show_progress
from iscp_dagster.cli.parts.sanitizing import escape_control_chars
from iscp_dagster.clickhouse.write.letters import DeadLetter
from iscp_dagster.joblog.history import Usage
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.jobs import JobID, JobStatus
from iscp_dagster.planning.problems import Problem
from iscp_dagster.upkeep.comparison import ComparisonResult, UnbuiltIndex
from iscp_dagster.upkeep.dead_letters import ReplayOutcome
from iscp_dagster.upkeep.verify import IndexVerdict


def verdict(**changes):
    values = {"index": "mirror", "tenant": "clickhouse-connect", "version": 12, "rows": 11_049}
    return IndexVerdict(**(values | changes))


def compared(capsys, found, *, as_json=False, differs=False):
    """Return what is printed of a comparison, or the rows of its JSON."""
    show.print_comparison(found, as_json=as_json, differs=differs)
    said = capsys.readouterr().out
    return json.loads(said) if as_json else said


def test_a_verdict_is_one_line(capsys):
    found = ComparisonResult(verdicts=[(symbols, verdict(tenant="matplotlib"))])
    counts, heading, line = compared(capsys, found).splitlines()
    assert counts == "1 comparison: 1 agree, 11,049 rows in all"
    assert heading.split() == [
        *("index", "tenant", "version", "rows", "missing", "extra", "differ", "agrees")
    ]
    assert line.split() == [
        *("docs.symbols/mirror", "matplotlib", "12", "11,049", "0", "0", "0", "yes")
    ]


def test_what_differs_is_named(capsys):
    wrong = verdict(extra=3, samples=("the row with id = 1 is not in the source",))
    said = compared(capsys, ComparisonResult(verdicts=[(symbols, wrong)]))
    assert "docs.symbols/mirror, tenant clickhouse-connect: the row with id = 1" in said
    assert said.endswith("is not in the source; and 2 more\n")
    assert max(map(len, said.splitlines()[:-1])) <= 80


def test_what_differs_comes_first_of_many_and_can_be_chosen(capsys):
    agreeing = [(symbols, verdict(tenant=f"t{number}")) for number in range(900)]
    unbuilt = [(symbols, UnbuiltIndex(index="mirror", tenant=f"u{number}")) for number in range(20)]
    odd = (symbols, verdict(tenant="odd", extra=1, samples=("a.b",)))
    found = ComparisonResult(verdicts=[*agreeing, odd], unbuilt=unbuilt)
    counts, _, first, *lines = compared(capsys, found).splitlines()
    assert counts == (
        "901 comparisons: 1 differ, 900 agree, 20 not built yet, 9,955,149 rows in all"
    )
    assert first.split()[1] == "odd"
    assert len(lines) == 99 + 3
    assert lines[-2].startswith("100 of 901 are shown; see --limit, --differs")
    assert lines[-1].startswith("docs.symbols/mirror, tenants u0, u1, u10")
    assert lines[-1].endswith("and 10 more: not built yet")
    _, _, row, sample, not_built = compared(capsys, found, differs=True).splitlines()
    assert (row.split()[1], sample[-3:], not_built) == ("odd", "a.b", lines[-1])
    assert len(compared(capsys, found, as_json=True)) == 921
    assert len(compared(capsys, found, as_json=True, differs=True)) == 21


def test_a_row_is_one_whole_line_for_whoever_is_no_terminal(capsys, piped):
    long = "t" * 200 + "\nx"
    found = ComparisonResult(verdicts=[(symbols, verdict(tenant=long))])
    _, heads, row = compared(capsys, found).splitlines()
    assert row.split("\t")[1] == "t" * 200 + "\\nx"
    assert heads.split("\t").index("agrees") == row.split("\t").index("yes")
    job_show.print_usage([used(failed=1, canceled=2, tenant=long)])
    assert len(capsys.readouterr().out.splitlines()) == 3
    dlq_show.print_letters(
        [replace(_letter(), tenant="名" * 50, reason="why " * 30)], as_json=False
    )
    counts, heads, row = capsys.readouterr().out.splitlines()
    assert counts.startswith("1 dead letter: 1 of ")
    assert "名" * 50 in row
    assert row.endswith("why " * 29 + "why ")


def test_a_letter_s_reason_takes_two_lines_of_a_terminal_at_most(capsys):
    reason = "docs.symbols/mirror: " + "the value of the column is not a number, " * 10
    letter = replace(_letter(), index="docs.symbols/mirror", tenant="eu", reason=reason)
    dlq_show.print_letters([letter], as_json=False)
    _, *heads, first, second = capsys.readouterr().out.splitlines()
    assert len(heads) == 2
    assert first.split()[:4] == ["00000000", "docs.symbols/mirror", "1", "the"]
    assert second.split()[:2] == ["eu", "10300"]
    assert second.rstrip().endswith("...")


def test_a_name_of_spaces_is_seen(capsys, monkeypatch, request):
    for _ in range(2):
        job_show.print_usage([used(tenant=" ")])
        assert "' '" in capsys.readouterr().out
        request.getfixturevalue("piped")


UNBUILT = (symbols, UnbuiltIndex(index="mirror", tenant="c"))
FAILED = JobStatus(code=10_300, message="column 'x' has no type")
ODD = "[/x] [red]a\x1b]52;c;QQ==\x07\x9b2J\r\nb"
WRITTEN_OUT = "[/x] [red]a\\x1b]52;c;QQ==\\x07\\x9b2J\\x0d"


def _letter():
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    return DeadLetter(
        id="0" * 32,
        index=ODD,
        tenant=ODD,
        registration=1,
        from_version=0,
        to_version=1,
        task=0,
        chunk=0,
        deleted=False,
        code=10_300,
        reason=ODD,
        row=ODD,
        version=1,
        timestamp=at,
        at=at,
        epoch=1,
    )


@pytest.mark.parametrize(
    "print_",
    [
        lambda: show.print_comparison(
            ComparisonResult(
                verdicts=[(symbols, verdict(tenant=ODD, missing=1, samples=(ODD,), dead=1))],
                unbuilt=[(symbols, UnbuiltIndex(index="mirror", tenant=ODD))],
                problems=[Problem(table="a.b", message=ODD, kind="")],
            ),
            as_json=False,
        ),
        lambda: job_show.line(ODD),
        lambda: job_show.print_usage([Usage(tenant=ODD, name=JobID(db="a", table="b", job="c"))]),
        lambda: dlq_show.print_letters([_letter()], as_json=False),
        lambda: dlq_show.print_letter_facts([_letter()], as_json=False),
    ],
)
def test_what_others_wrote_tells_a_terminal_nothing(capsys, monkeypatch, print_):
    monkeypatch.setenv("COLUMNS", "400")
    print_()
    said = capsys.readouterr().out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", said)
    assert WRITTEN_OUT in said


def test_a_name_of_several_lines_stands_in_one(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    job_show.print_usage([Usage(tenant="two\nlines\tof", name=JobID(db="a", table="b", job="c"))])
    assert r"two\nlines\tof" in capsys.readouterr().out


def used(**changes):
    name = JobID(db="docs", table="symbols", job="mirror")
    return Usage(
        **({"tenant": "rich", "name": name, "iterations": 12, "bytes": 9_876_543} | changes)
    )


def test_usage_is_one_line_a_job_where_that_fits(capsys):
    job_show.print_usage([used(inserted=1_234), used(tenant="typer")])
    _, heading, rich, typer = capsys.readouterr().out.splitlines()
    assert heading.split() == ["job", "tenant", "iterations", "inserted", "bytes", "seconds"]
    assert rich.split() == ["docs.symbols/mirror", "rich", "12", "1,234", "9,876,543", "0.0"]
    assert "typer" in typer
    job_show.print_usage([used(failed=1, canceled=2, deleted=3, tenant="clickhouse-connect")])
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 5
    assert max(map(len, said)) <= 80
    assert "canceled" in said[2]


def test_a_letter_s_job_is_no_number_for_json(capsys):
    for print_ in (dlq_show.print_letters, dlq_show.print_letter_facts):
        print_([replace(_letter(), registration=2**63 - 1)], as_json=True)
        (row,) = json.loads(capsys.readouterr().out)
        assert row["registration"] == str(2**63 - 1)


def test_what_became_of_a_letter_is_a_word_with_the_error_beside_it(capsys):
    letter, error = _letter(), IscpError("too long")
    done = [
        ReplayOutcome(letter=letter, error=error),
        ReplayOutcome(letter=letter, rebuilt=True),
        ReplayOutcome(letter=letter, superseded=True),
        ReplayOutcome(letter=letter),
    ]
    dlq_show.print_replay_results(done, as_json=True)
    refused, *others = json.loads(capsys.readouterr().out)
    assert refused == {
        "id": letter.id,
        "outcome": "refused",
        "code": IscpError.code,
        "message": "too long",
    }
    assert [each["outcome"] for each in others] == ["rebuild", "dropped", "written"]
    assert {each["message"] for each in others} == {None}
    dlq_show.print_replay_results(done[:1], as_json=False)
    assert "00000000: refused again: too long\n0 replayed, 1 stay" in capsys.readouterr().out


def test_an_error_keeps_the_colours_of_the_log_in_it_and_nothing_else():
    assert escape_control_chars("\x1b[31mred\x1b[0m \x1b]0;x\x07", colours=True) == (
        "\x1b[31mred\x1b[0m \\x1b]0;x\\x07"
    )


def test_what_turns_the_direction_of_text_is_written_out():
    """A name could look like another, and push what follows it to its left."""
    assert (
        escape_control_chars("a\u202egpj.exe\u2069 \u05d0\u200f")
        == "a\\u202egpj.exe\\u2069 \u05d0\u200f"
    )


def test_json_has_every_count(capsys):
    found = ComparisonResult(verdicts=[(symbols, verdict(extra=1))])
    (row,) = compared(capsys, found, as_json=True)
    assert (row["index"], row["extra"], row["agrees"]) == ("docs.symbols/mirror", 1, False)


def test_what_is_not_built_has_the_keys_that_what_is_has(capsys):
    found = ComparisonResult(verdicts=[(symbols, verdict())], unbuilt=[UNBUILT])
    built, not_built = compared(capsys, found, as_json=True)
    assert not_built == {
        "index": "docs.symbols/mirror",
        "tenant": "c",
        "agrees": False,
        "built": False,
        "code": 0,
        "message": "",
    }
    assert not_built.keys() <= built.keys()


def test_what_is_in_error_is_told_from_what_is_not_built_yet(capsys):
    failed = [(symbols, UnbuiltIndex(index="mirror", tenant=of, error=FAILED)) for of in ("a", "b")]
    built = verdict(tenant="rich")
    found = ComparisonResult(verdicts=[(symbols, built)], unbuilt=[UNBUILT, *failed])
    counts, _, _, *lines = compared(capsys, found).splitlines()
    assert counts == "1 comparison: 1 agree, 1 not built yet, 2 in error, 11,049 rows in all"
    assert lines[0] == "docs.symbols/mirror, tenant c: not built yet"
    said = " ".join(lines[1:])
    assert said == "docs.symbols/mirror, tenants a, b: in error 10300: column 'x' has no type"
    told = [(each["code"], each["message"]) for each in compared(capsys, found, as_json=True)]
    assert told == [(0, ""), (0, ""), *[(10_300, "column 'x' has no type")] * 2]


def test_what_is_being_done_is_told_to_a_terminal_alone():
    for terminal in (True, False):
        out = io.StringIO()
        with show_progress(Console(file=out, force_terminal=terminal, width=80)) as tell:
            tell("comparing docs.symbols/[odd], a and 2 more, at version 3")
        assert ("comparing docs.symbols/[odd], a and 2 more" in out.getvalue()) is terminal
        assert terminal or out.getvalue() == ""


def test_a_long_wait_is_told_of_now_and_then_elsewhere():
    out, now = io.StringIO(), [0.0]
    with show_progress(Console(file=out, width=80), seconds=10, monotonic=lambda: now[0]) as tell:
        for second in range(40):
            now[0] = float(second)
            tell(f"version 1 is still to come in {'2 indexes' if second < 25 else '1 index'}\x1b")
    assert out.getvalue().splitlines() == [
        "version 1 is still to come in 2 indexes\\x1b",
        "version 1 is still to come in 1 index\\x1b",
    ]


@pytest.mark.parametrize(
    ("found", "differs", "whole"),
    [
        (ComparisonResult(), False, False),
        (ComparisonResult(verdicts=[(symbols, verdict())]), False, True),
        (ComparisonResult(verdicts=[(symbols, verdict())], unbuilt=[UNBUILT]), False, False),
        (ComparisonResult(verdicts=[(symbols, verdict(extra=1))], unbuilt=[UNBUILT]), True, False),
    ],
)
def test_what_differs_is_told_from_what_was_not_compared(found, differs, whole):
    assert (found.differs, found.complete) == (differs, whole)
