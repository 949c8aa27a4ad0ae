"""The stack after the demo; test_quickstart covers the demo itself."""

from __future__ import annotations

import pytest

from iscp_dagster.demo import run as demo
from iscp_dagster.demo.run import Demo, OutOfStepError
from iscp_dagster.local.stack.ports import find_free_port
from iscp_dagster.upkeep.verify_indexes import IndexVerdict
from support.errors import raises_naming
from support.jobs.one_table import make_variables

AGREES = IndexVerdict(index="mirror", tenant="rich", version=2, rows=3)
DIFFERS = IndexVerdict(index="mirror", tenant="rich", version=2, rows=3, missing=1)


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """Record the calls to a stack that does not exist; the demo finds that its index agrees."""
    calls: list[str] = []
    environ = make_variables(tmp_path) | {
        "DAGSTER_URL": "http://127.0.0.1:9",
        "ISCP_WEBHOOK_SECRET": f"whsec_{'A' * 32}",
        "ISCP_DEMO_PORT": str(find_free_port()),
    }
    monkeypatch.setenv("ISCP_HOME", environ["ISCP_HOME"])
    monkeypatch.setattr(demo, "add_stack_variables", lambda _: environ)
    monkeypatch.setattr(Demo, "run_steps", lambda _: [AGREES])
    for name in ("start_stack", "print_status", "stop_stack"):
        monkeypatch.setattr(demo.control, name, lambda *_, name=name, **__: calls.append(name))
    return calls


def test_a_stack_that_the_demo_started_ends_with_it(calls):
    assert demo.run(keep=False) == 0
    assert calls == ["start_stack", "stop_stack"]


def test_a_stack_that_is_kept_is_shown_with_the_next_commands(calls, capsys):
    assert demo.run(keep=True) == 0
    assert calls == ["start_stack", "print_status"]
    assert "./iscp job list" in capsys.readouterr().out


def test_a_stack_that_was_up_before_stays_up(monkeypatch, calls):
    monkeypatch.setattr(demo, "find_running_stack", lambda _: object())
    assert demo.run(keep=False) == 0
    assert calls == ["start_stack"]


def test_an_index_that_differs_fails_the_demo_and_ends_the_stack_too(monkeypatch, calls):
    monkeypatch.setattr(Demo, "run_steps", lambda _: [DIFFERS])
    with raises_naming(OutOfStepError, "1 of 1 indexes"):
        demo.run(keep=False)
    assert calls == ["start_stack", "stop_stack"]
