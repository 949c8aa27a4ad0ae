"""The GraphQL server and the runtime of invocations as services of the stack: found, guarded, and
started again.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from iscp_dagster.local.services.settings import CLICKHOUSE, GRAPHQL, INVOCATIONS
from iscp_dagster.local.services.state import Condition, ServiceState
from iscp_dagster.local.services.state import find_running_stack as state_of
from iscp_dagster.local.stack.environment import get_shell_variables
from support.errors import assert_names
from support.services.stack import clean_environment, iscp, running_stack, wait_for


def query_tables(url: str, **headers: str) -> tuple[int, str]:
    answer = httpx.post(url, json={"query": "{ _tables }"}, headers=headers, trust_env=False)
    return answer.status_code, answer.text


def invoke(url: str, handler: str, argument: object, **headers: str) -> tuple[int, object]:
    answer = httpx.post(f"{url}/{handler}", json=argument, headers=headers, trust_env=False)
    return answer.status_code, answer.json()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run one stack for all, whose logs are free of tracebacks."""
    home = tmp_path_factory.mktemp("stack") / "home"
    with running_stack(home, (CLICKHOUSE, GRAPHQL, INVOCATIONS)):
        yield home
    for name in (GRAPHQL, INVOCATIONS):
        assert "Traceback" not in (home / "logs" / f"{name}.log").read_text()


def kill_and_await(home: Path, name: str) -> None:
    """Kill a service, and wait until the stack has it up again."""

    def service() -> ServiceState:
        return state_of(home).get_service(name)

    first = service().pid
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: service().pid not in {None, first}, 60)
    wait_for(lambda: service().condition is Condition.READY, 60)
    assert service().restarts == 1


def test_the_stack_keeps_the_graphql_server_up(home: Path) -> None:
    url = get_shell_variables({"ISCP_HOME": str(home)})["ISCP_GRAPHQL_URL"]
    assert url == state_of(home).get_service(GRAPHQL).address
    assert query_tables(url) == (200, '{"data":{"_tables":[]}}')
    assert query_tables(url, Origin="https://elsewhere.example")[0] == 403
    kill_and_await(home, GRAPHQL)
    assert query_tables(url)[0] == 200


def test_the_stack_keeps_the_runtime_of_invocations_up(home: Path) -> None:
    """It serves the stack's own services, whose handlers it invokes after a restart, too."""
    url = get_shell_variables({"ISCP_HOME": str(home)})["ISCP_INVOCATIONS_URL"]
    assert url == state_of(home).get_service(INVOCATIONS).address
    nobody = {"job": "shop.nothing/none", "tenant": "a"}
    for _ in range(2):
        # The own services are registered once the server answers.
        wait_for(lambda: invoke(url, "Iscp/nothing", nobody)[1]["message"].count("status"), 60)
        status, answer = invoke(url, "Iscp/status", nobody)
        assert (status, answer["code"]) == (404, 404), answer
        assert_names(answer["message"], "'shop.nothing'")
        if state_of(home).get_service(INVOCATIONS).restarts == 0:
            kill_and_await(home, INVOCATIONS)
    assert invoke(url, "Iscp/status", nobody, Origin="https://elsewhere.example")[0] == 403
    listed = iscp(clean_environment(home), home, "invocations", "deploy", "--json")
    assert [each["id"] for each in json.loads(listed.stdout)] == ["dp_iscp"], listed
    listed = iscp(clean_environment(home), home, "invocations", "list", "--json")
    invocations = [(each["target"], each["status"]) for each in json.loads(listed.stdout)]
    assert invocations == [("Iscp/status", "completed")] * 2
