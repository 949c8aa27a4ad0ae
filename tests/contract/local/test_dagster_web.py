"""What a web page may do with Dagster's webserver: follow a link to it, and no more."""

import subprocess
import sys

import httpx
import pytest

from iscp_dagster.local.stack.ports import find_free_port
from support.services.stack import clean_environment, wait_for

START_SECONDS = 120.0
EVIL = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
MUTATION = "mutation { reloadWorkspace { __typename } }"


@pytest.fixture(scope="module")
def dagster(tmp_path_factory):
    home = tmp_path_factory.mktemp("dagster")
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    port, log = find_free_port(), home / "web.log"
    command = [
        sys.executable,
        "-m",
        "iscp_dagster.local.web.dagster_webserver",
        "--empty-workspace",
    ]
    command += ["-h", "127.0.0.1", "-p", str(port)]
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
        yield url
        server.terminate()


@pytest.mark.parametrize(
    "headers", [EVIL, {"Host": "evil.example"}, {"Sec-Fetch-Site": "same-site"}]
)
def test_a_foreign_page_asks_dagster_nothing(dagster, headers):
    plain = {"Content-Type": "text/plain", **headers}
    asked = {"query": MUTATION}
    with httpx.Client(base_url=dagster, timeout=60) as http:
        for refused in (
            http.post("/graphql", params=asked, headers=plain),
            http.post("/graphql", json=asked, headers=headers),
            http.get("/graphql", params=asked, headers=headers),
            http.get("/server_info", headers=headers),
            http.get(
                "/graphql",
                headers={
                    **headers,
                    "Connection": "Upgrade",
                    "Upgrade": "websocket",
                    "Sec-WebSocket-Version": "13",
                    "Sec-WebSocket-Key": "x3JJHMbDL1EzLkh9GBhXDw==",
                },
            ),
        ):
            assert refused.status_code == 403


def test_a_get_changes_nothing(dagster):
    several = f"query Reading {{ version }} {MUTATION.replace('mutation', 'mutation Writing')}"
    with httpx.Client(base_url=dagster, timeout=60) as http:
        for asked in (
            {"query": MUTATION},
            {"query": f"# query\n{MUTATION}", "operationName": "Reading"},
            {"query": several, "operationName": "Reading"},
            {"query": several, "operationName": "Writing"},
            {"query": "subscription { runsStatus { __typename } }"},
            {"query": "{ version }" + "#" * 20_000},
        ):
            refused = http.get("/graphql", params=asked)
            assert (refused.status_code, refused.headers["Allow"]) == (405, "POST")
            assert "by POST" in refused.json()["errors"][0]["message"]
            assert http.head("/graphql", params=asked).status_code == 405


def test_a_get_asks_what_it_likes(dagster):
    with httpx.Client(base_url=dagster, timeout=60) as http:
        for asked in (
            {"query": "{ version }"},
            {"query": "query A { version } query B { version }"},
        ):
            named = {**asked, "operationName": "A"} if "A" in asked["query"] else asked
            assert http.get("/graphql", params=named).json()["data"]["version"]
        for torn in ("mutation {", "{a" * 2_000 + "}" * 2_000):
            answer = http.get("/graphql", params={"query": torn})
            assert answer.status_code == 400
            assert "Syntax Error" in answer.text
        page = http.get("/graphql", params={"query": MUTATION}, headers={"Accept": "text/html"})
        assert "graphiql" in page.text


def test_its_own_page_and_programs_ask_what_they_like(dagster):
    own = {"Origin": dagster, "Sec-Fetch-Site": "same-origin"}
    for headers in (own, {}):
        answer = httpx.post(f"{dagster}/graphql", json={"query": MUTATION}, headers=headers)
        assert answer.json()["data"]["reloadWorkspace"]["__typename"] == "Workspace"
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    key = {"Sec-WebSocket-Key": "x3JJHMbDL1EzLkh9GBhXDw=="}
    assert httpx.get(f"{dagster}/graphql", headers={**own, **upgrade, **key}).status_code == 101
