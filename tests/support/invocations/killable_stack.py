"""Two runtimes on one PostgreSQL and an endpoint that both drive, each of which can be killed."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from support.invocations.faults import once_after_ack
from support.invocations.gates import Gates
from support.invocations.killable_processes import (
    ALL,
    OWNER,
    TRIP,
    Mortal,
    run_endpoint,
    run_runtime,
)
from support.services.postgres import driven, kill

END_SECONDS = 40.0
JOURNAL = ["Input", "Run", "Sleep", "Call", "Call", "OneWayCall", "Run", "Output"]
RUNTIME, ENDPOINT, DATABASE = "runtime", "endpoint", "database"


class MortalStack:
    """Makes trips, and counts the kills and the effects."""

    def __init__(self, folder: Path, database: Any) -> None:
        self.folder, self.database = folder, database
        url = driven(database.get_uri()).render_as_string(hide_password=False)
        self.gates = Gates(folder)
        self.runtimes = [
            Mortal(run_runtime, folder / f"runtime {number}.log", (url, folder))
            for number in range(2)
        ]
        self.endpoint = Mortal(run_endpoint, folder / "endpoint.log", (folder,))
        self.http = httpx.Client(timeout=5)
        self.counts: Counter[str] = Counter()

    def start(self) -> None:
        """Start all, and register what the endpoint serves."""
        for each in (self.endpoint, *self.runtimes):
            each.start()
        body = {"uri": self.endpoint.url}
        answer = self.http.post(f"{self.runtimes[0].url}/admin/deployments", json=body)
        assert answer.status_code in {200, 201}, answer.text

    def end(self) -> None:
        self.http.close()
        for each in (self.endpoint, *self.runtimes):
            if each.process is not None:
                each.kill()

    def begin(self, seconds: float) -> tuple[str, Path]:
        """Begin a trip; return its id, and the file of its effects."""
        self.counts["trips"] += 1
        file = self.folder / f"effects {self.counts['trips']}"
        argument = {"file": str(file), "gates": str(self.folder), "seconds": seconds}
        headers = {"idempotency-key": file.name}
        answer = self.request("POST", "/Trips/trip/send", json=argument, headers=headers)
        return answer.json()["invocationId"], file

    def await_end(self, id_: str, file: Path) -> Counter[str]:
        """Wait for the one right output of a trip; return how often each effect happened."""
        answer = self.request("GET", f"/restate/invocation/{id_}/attach")
        assert answer.json() == TRIP, answer.text
        journal = self.request("GET", f"/admin/invocations/{id_}").json()["journal"]
        assert [entry["type"] for entry in journal] == JOURNAL
        effects = Counter(once_after_ack(file.read_text().splitlines()))
        assert effects.keys() == {"run 0", "run 1"}
        self.counts.update(effects)
        return effects

    def await_tally(self) -> dict[str, int]:
        """Wait until the tally has one call and one send of each trip; return it."""
        trips = self.counts["trips"]
        end = time.monotonic() + END_SECONDS
        while True:
            tally = self.request("POST", f"/Tally/{ALL}/added").json()
            if tally == {"calls": trips, "sends": trips}:
                return tally
            assert max(tally.values(), default=0) <= trips, tally
            assert time.monotonic() < end, f"{tally} in place of {trips}\n{self.output}"
            time.sleep(0.02)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request to either runtime until one answers."""
        end, problem = time.monotonic() + END_SECONDS, ""
        while True:
            for runtime in self.runtimes:
                try:
                    answer = self.http.request(method, runtime.url + path, **options)
                except httpx.TransportError as error:
                    problem = repr(error)
                    continue
                if answer.status_code < 400:
                    return answer
                problem = answer.text
            assert time.monotonic() < end, f"{problem}\n{self.output}"
            time.sleep(0.02)

    @property
    def output(self) -> str:
        """The end of what each process wrote."""
        logs = [process.log for process in (self.endpoint, *self.runtimes)]
        return "\n".join(f"{log.name}: {log.read_text()[-3_000:]}" for log in logs)

    def find_runtime(self, pid: int) -> Mortal:
        return next(runtime for runtime in self.runtimes if runtime.process.pid == pid)

    def find_driver(self, id_: str) -> int:
        """Return the process of the runtime that drives the invocation."""
        invocation = self.request("GET", f"/admin/invocations/{id_}").json()
        return int(invocation["driven_by"].removeprefix(OWNER))

    def strike(self, victim: str, pid: int) -> None:
        """Kill the victim, and start it again; of the runtimes the one with that process."""
        self.counts[f"{victim} killed"] += 1
        if victim == DATABASE:
            kill(self.database)
            self.database.ensure_postgres_running()
            return
        process = self.endpoint if victim == ENDPOINT else self.find_runtime(pid)
        process.kill()
        process.start()
