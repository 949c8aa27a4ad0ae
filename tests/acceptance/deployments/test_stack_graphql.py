"""The GraphQL server as a service of the stack: found, guarded, and started again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest
from stackfixture import running_stack, wait_for

from iscp_dagster.local.services.settings import CLICKHOUSE, GRAPHQL
from iscp_dagster.local.services.state import Condition
from iscp_dagster.local.services.state import running_stack as state_of
from iscp_dagster.local.stack.environment import addresses

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def asked(url: str, **headers: str) -> tuple[int, str]:
    answer = httpx.post(url, json={"query": "{ _tables }"}, headers=headers, trust_env=False)
    return answer.status_code, answer.text


def test_the_stack_keeps_the_graphql_server_up(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def service():
        return state_of(home).service(GRAPHQL)

    with running_stack(home, (CLICKHOUSE, GRAPHQL)):
        url = addresses({"ISCP_HOME": str(home)})["ISCP_GRAPHQL_URL"]
        assert url == service().address
        assert asked(url) == (200, '{"data":{"_tables":[]}}')
        assert asked(url, Origin="https://elsewhere.example")[0] == 403
        first = service().pid
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: service().pid not in {None, first}, 60)
        wait_for(lambda: service().condition is Condition.READY, 60)
        assert service().restarts == 1
        assert asked(url)[0] == 200
    assert "Traceback" not in (home / "logs" / "graphql.log").read_text()
