"""A process that tests kill: a Dagster instance with the location's sensor and jobs.

Run as `python -m support.services.dagster_process CONFIG`, a JSON file. It evaluates the sensor
repeatedly and executes the requested runs in a thread, as daemon and run worker do. It writes
events to a file, one in each line.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from iscp_dagster import SourceTable
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.joblog.leases import LeaseDurations
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.errors import FenceError
from iscp_dagster.runs.alembic_cache import cache_migrations
from iscp_dagster.sync.deployment import Deployment
from support.spark.fake_spark import NearSpark, near

PAUSE, LOOK_PAUSE = 0.3, 1.0
NOWHERE = "http://127.0.0.1:9"
CHANGED: threading.Event = threading.Event()


def write_event(file: Path, **what: Any) -> None:
    """Write one line, whole even when other processes write too."""
    line = json.dumps({"pid": os.getpid(), **what}) + "\n"
    with file.open("ab", buffering=0) as out:
        out.write(line.encode())


class Gated:
    """Records every batch; asks for none while a file holds its process."""

    def __init__(self, _source: Any, info: Any) -> None:
        self.events = Path(info.options["told"])
        self.hold = self.events.parent / f"hold-{os.getpid()}"

    def consume(self, retriever: Any) -> None:
        fence = retriever.fences["a"]
        ends = [retriever.range.from_.version, retriever.range.to.version]
        write_event(self.events, what="begins", ends=ends, fence=fence)
        done = False
        while not done:
            while self.hold.exists():
                CHANGED.wait(PAUSE)
            try:
                inserts, _, done = retriever.next()
            except FenceError:
                write_event(self.events, what="refused", ends=ends, fence=fence)
                raise
            ids = [] if inserts is None else inserts["id"].to_pylist()
            write_event(self.events, what="takes", ends=ends, fence=fence, ids=ids)


def main(config: dict[str, Any]) -> None:
    import dagster as dg

    from iscp_dagster.location.build import build_definitions
    from support.jobs.sensor_ticks import RUNNER, Ticks

    warnings.simplefilter("ignore")
    events = Path(config["told"])
    log = SqlLog(config["log"], leases=LeaseDurations(**config["leases"]), actor=config["name"])
    deployment = Deployment(
        endpoint=ClickHouseEndpoint.parse(NOWHERE), log=log, spark=NearSpark, lake=config["lake"]
    )
    source = SourceTable(config["table"], key="id", tenant="tenant", indexes=[])
    iscp = SimpleNamespace(create_deployment=lambda: deployment)
    defs = build_definitions([source], {"iscp": iscp})
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    cache_migrations()
    with dg.DagsterInstance.from_config(config["home"]) as instance:

        def work() -> None:
            while request := requests.get():
                job = defs.resolve_job_def(request.job_name)
                job.execute_in_process(
                    instance=instance, tags=dict(request.tags), raise_on_error=False
                )

        threading.Thread(target=work, daemon=True).start()
        ticks = Ticks(defs, instance)
        while os.getppid() == config["parent"]:
            result = ticks.evaluate(RUNNER)
            for request in result.run_requests:
                requests.put(request)
            skipped = result.skip_message or ""
            write_event(events, what="looks", requests=len(result.run_requests), skipped=skipped)
            CHANGED.wait(LOOK_PAUSE)


if __name__ == "__main__":
    with near():
        main(json.loads(Path(sys.argv[1]).read_text()))
