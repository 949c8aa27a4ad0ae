"""The stack after the demo; test_quickstart covers the demo itself."""

from __future__ import annotations

import pytest

from iscp_dagster.demo import run as demo
from iscp_dagster.demo.run import Demo, OutOfStepError
from iscp_dagster.local.stack.ports import find_free_port
from iscp_dagster.upkeep.verify import IndexVerdict

AGREES = IndexVerdict(index="mirror", tenant="rich", version=2, rows=3)
DIFFERS = IndexVerdict(index="mirror", tenant="rich", version=2, rows=3, missing=1)


@pytest.fixture
def ended(monkeypatch, tmp_path):
    """Record the calls to a stack that does not exist."""
    found: list[str] = []
    environ = {
        "ISCP_HOME": str(tmp_path),
        "ISCP_LAKE": str(tmp_path),
        "ISCP_LOG_URL": f"sqlite:///{tmp_path / 'log.sqlite'}",
        "CLICKHOUSE_URL": "http://127.0.0.1:1",
        "DAGSTER_URL": "http://127.0.0.1:1",
        "SPARK_REMOTE": "sc://127.0.0.1:1",
        "ISCP_WEBHOOK_SECRET": f"whsec_{'A' * 32}",
        "ISCP_DEMO_PORT": str(find_free_port()),
    }
    monkeypatch.setenv("ISCP_HOME", str(tmp_path))
    monkeypatch.setattr(demo, "add_stack_variables", lambda _: environ)
    for name in ("start_stack", "print_status", "stop_stack"):
        monkeypatch.setattr(demo.control, name, lambda *_, name=name, **__: found.append(name))
    return found


def played(monkeypatch, verdict):
    monkeypatch.setattr(Demo, "run_steps", lambda _: [verdict])


def test_a_stack_that_the_demo_started_ends_with_it(monkeypatch, ended):
    played(monkeypatch, AGREES)
    assert demo.run(keep=False) == 0
    assert ended == ["start_stack", "stop_stack"]


def test_kept_it_stays_and_its_addresses_and_next_commands_are_shown(monkeypatch, ended, capsys):
    played(monkeypatch, AGREES)
    assert demo.run(keep=True) == 0
    assert ended == ["start_stack", "print_status"]
    assert "./iscp job list" in capsys.readouterr().out


def test_one_that_was_up_before_stays_up(monkeypatch, ended):
    played(monkeypatch, AGREES)
    monkeypatch.setattr(demo, "find_running_stack", lambda _: object())
    assert demo.run(keep=False) == 0
    assert ended == ["start_stack"]


def test_an_index_that_differs_fails_it_and_ends_the_stack_too(monkeypatch, ended):
    played(monkeypatch, DIFFERS)
    with pytest.raises(OutOfStepError, match="1 of 1 indexes differ"):
        demo.run(keep=False)
    assert ended == ["start_stack", "stop_stack"]
