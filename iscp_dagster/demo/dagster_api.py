"""The few calls of Dagster's GraphQL interface that the demo makes, as the UI does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from iscp_dagster.model.errors import IscpError, UnavailableError

LOCATION = "iscp_dagster"
REPOSITORY = "__repository__"
JOB = "__ASSET_JOB"
FINISHED = {"SUCCESS", "FAILURE", "CANCELED"}
RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"
POLL_SECONDS = 0.5

ADD_PARTITION = """
mutation($selector: RepositorySelector!, $name: String!, $key: String!) {
  addDynamicPartition(repositorySelector: $selector, partitionsDefName: $name, partitionKey: $key) {
    __typename ... on PythonError { message } ... on UnauthorizedError { message }
  }
}
"""
LAUNCH = """
mutation($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""
STATUS = """
query($id: ID!) { runOrError(runId: $id) { __typename ... on Run { status } } }
"""


class DagsterApiError(IscpError):
    """Dagster refused a request, or a run failed."""

    code = 10_950


@dataclass
class DagsterApi:
    """The web server at `url`."""

    url: str
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=60))

    def add_partition(self, definition: str, key: str) -> None:
        """Add a dynamic partition. Idempotent."""
        selector = {"repositoryLocationName": LOCATION, "repositoryName": REPOSITORY}
        variables = {"selector": selector, "name": definition, "key": key}
        self.run_mutation(
            ADD_PARTITION,
            variables,
            {"AddDynamicPartitionSuccess", "DuplicateDynamicPartitionError"},
        )

    def materialize(
        self, asset: Sequence[str], partitions: tuple[str, str], config: dict[str, Any]
    ) -> str:
        """Launch one run of the partitions from the first to the last; returns its id."""
        first, last = partitions
        tags = {RANGE_START: first, RANGE_END: last}
        return self.launch(JOB, tags, config, assetSelection=[{"path": list(asset)}])

    def launch(
        self,
        job: str,
        tags: Mapping[str, str] | None = None,
        config: dict[str, Any] | None = None,
        **selected: Any,
    ) -> str:
        """Launch one run of the job, or of what is `selected` in it; returns its id."""
        selector = {
            "repositoryLocationName": LOCATION,
            "repositoryName": REPOSITORY,
            "pipelineName": job,
        }
        tag_list = [{"key": key, "value": value} for key, value in (tags or {}).items()]
        params = {
            "selector": selector | selected,
            "runConfigData": config or {},
            "executionMetadata": {"tags": tag_list},
        }
        result = self.run_mutation(LAUNCH, {"params": params}, {"LaunchRunSuccess"})
        return str(result["run"]["runId"])

    def wait(self, run_id: str, seconds: float) -> None:
        """Wait for the run to succeed. Raises DagsterApiError when it does not in time."""
        deadline = time.monotonic() + seconds
        status = ""
        while status not in FINISHED and time.monotonic() < deadline:
            status = self.query(STATUS, {"id": run_id})["runOrError"].get("status", "")
            time.sleep(POLL_SECONDS)
        if status != "SUCCESS":
            raise DagsterApiError(
                f"Run {run_id} is {status or 'unknown'} after {seconds:.0f} s; "
                f"see {self.url}/runs/{run_id}"
            )

    def run_mutation(
        self, query: str, variables: dict[str, Any], expected: set[str]
    ) -> dict[str, Any]:
        """The answer to the one mutation in `query`. Raises DagsterApiError if it is unexpected."""
        (result,) = self.query(query, variables).values()
        if result["__typename"] not in expected:
            reason = result.get("message") or result.get("errors") or result["__typename"]
            raise DagsterApiError(f"Dagster at {self.url} refused: {reason}")
        return dict(result)

    def query(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The answer's data.

        Raises UnavailableError if Dagster does not answer, DagsterApiError if it refuses.
        """
        try:
            answer = self.http.post(
                f"{self.url}/graphql", json={"query": query, "variables": variables}
            )
            answer.raise_for_status()
        except httpx.HTTPError as error:
            raise UnavailableError(f"Dagster at {self.url} does not answer: {error}") from error
        body = answer.json()
        if body.get("errors"):
            raise DagsterApiError(f"Dagster at {self.url} refused: {body['errors'][0]['message']}")
        return dict(body["data"])
