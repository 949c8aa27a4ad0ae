"""A web page may follow a link to Dagster's webserver, and no more."""

import subprocess
import sys

import httpx
import pytest

from iscp_dagster.local.stack.ports import find_free_port
from support.errors import assert_names
from support.services.stack import clean_environment, wait_for

START_SECONDS = 120.0
EVIL = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
MUTATION = "mutation { reloadWorkspace { __typename } }"
SEVERAL = f"query Reading {{ version }} {MUTATION.replace('mutation', 'mutation Writing')}"
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "x3JJHMbDL1EzLkh9GBhXDw==",
}


@pytest.fixture(scope="module")
def dagster(tmp_path_factory):
    """Run the webserver; give a client of it."""
    home = tmp_path_factory.mktemp("dagster")
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    port, log = find_free_port(), home / "web.log"
    command = [sys.executable, "-m", "iscp_dagster.local.web.dagster_webserver"]
    command += ["--empty-workspace", "-h", "127.0.0.1", "-p", str(port)]
    environment = clean_environment(home) | {"DAGSTER_HOME": str(home)}
    url = f"http://127.0.0.1:{port}"

    def answers():
        assert server.poll() is None, log.read_text()
        try:
            return httpx.get(f"{url}/server_info", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=environment) as server,
    ):
        wait_for(answers, START_SECONDS, log.read_text)
        with httpx.Client(base_url=url, timeout=60) as client:
            yield client
        server.terminate()


@pytest.mark.parametrize(
    "headers", [EVIL, {"Host": "evil.example"}, {"Sec-Fetch-Site": "same-site"}]
)
def test_every_request_of_a_foreign_page_is_refused(dagster, headers):
    plain, query = {"Content-Type": "text/plain", **headers}, {"query": MUTATION}
    for answer in (
        dagster.post("/graphql", params=query, headers=plain),
        dagster.post("/graphql", json=query, headers=headers),
        dagster.get("/graphql", params=query, headers=headers),
        dagster.get("/server_info", headers=headers),
        dagster.get("/graphql", headers=headers | UPGRADE),
    ):
        assert answer.status_code == 403


@pytest.mark.parametrize(
    "query",
    [
        {"query": MUTATION},
        {"query": f"# query\n{MUTATION}", "operationName": "Reading"},
        {"query": SEVERAL, "operationName": "Reading"},
        {"query": SEVERAL, "operationName": "Writing"},
        {"query": "subscription { runsStatus { __typename } }"},
        {"query": "{ version }" + "#" * 20_000},
    ],
)
def test_a_get_changes_nothing(dagster, query):
    answer = dagster.get("/graphql", params=query)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
    assert_names(answer.json()["errors"][0]["message"], "POST")
    assert dagster.head("/graphql", params=query).status_code == 405


def test_a_get_may_read(dagster):
    for query in (
        {"query": "{ version }"},
        {"query": "query A { version } query B { version }", "operationName": "A"},
    ):
        assert dagster.get("/graphql", params=query).json()["data"]["version"]
    for invalid in ("mutation {", "{a" * 2_000 + "}" * 2_000):
        answer = dagster.get("/graphql", params={"query": invalid})
        assert answer.status_code == 400
        assert "Syntax Error" in answer.text
    page = dagster.get("/graphql", params={"query": MUTATION}, headers={"Accept": "text/html"})
    assert "graphiql" in page.text


def test_dagster_s_own_page_and_programs_may_do_everything(dagster):
    own = {"Origin": str(dagster.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    for headers in (own, {}):
        answer = dagster.post("/graphql", json={"query": MUTATION}, headers=headers)
        assert answer.json()["data"]["reloadWorkspace"]["__typename"] == "Workspace"
    with dagster.stream("GET", "/graphql", headers=own | UPGRADE) as answer:
        assert answer.status_code == 101
