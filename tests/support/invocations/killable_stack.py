"""Two runtimes on one PostgreSQL and an endpoint that both drive, each of which can be killed."""

from __future__ import annotations

import json
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
    TRIPPED,
    Mortal,
    run_endpoint,
    run_runtime,
)
from support.services.postgres import driven, kill, start_again

END_SECONDS = 40.0
JOURNAL = ["Input", "Run", "Sleep", "Call", "Call", "OneWayCall", "Run", "Output"]
RUNTIME, ENDPOINT, DATABASE = "runtime", "endpoint", "database"


class MortalStack:
    """Goes on trips, and counts the kills and the effects."""

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
        told = {"uri": self.endpoint.url}
        answer = self.http.post(f"{self.runtimes[0].url}/admin/deployments", json=told)
        assert answer.status_code in {200, 201}, answer.text

    def end(self) -> None:
        self.http.close()
        for each in (self.endpoint, *self.runtimes):
            if each.process is not None:
                each.kill()

    def begin(self, seconds: float) -> tuple[str, Path]:
        """Begin a trip; its id, and the file of its effects."""
        self.counts["trips"] += 1
        file = self.folder / f"effects {self.counts['trips']}"
        told = {"file": str(file), "gates": str(self.folder), "seconds": seconds}
        headers = {"idempotency-key": file.name, "content-type": "application/json"}
        answer = self.asked("POST", "/Trips/trip/send", content=json.dumps(told), headers=headers)
        return answer.json()["invocationId"], file

    def ended(self, id_: str, file: Path) -> Counter[str]:
        """Wait for its output, which is right and there once; how often each effect was done."""
        answer = self.asked("GET", f"/restate/invocation/{id_}/attach")
        assert answer.json() == TRIPPED, answer.text
        shown = self.asked("GET", f"/admin/invocations/{id_}").json()
        kinds = [each["type"] for each in shown["journal"]]
        assert kinds == JOURNAL
        done = Counter(once_after_ack(file.read_text().splitlines()))
        assert done.keys() == {"run 0", "run 1"}
        self.counts.update(done)
        return done

    def settled(self) -> dict[str, int]:
        """Wait until what the trips sent has come, once from each; what was counted."""
        wanted = {"calls": self.counts["trips"], "sends": self.counts["trips"]}
        until = time.monotonic() + END_SECONDS
        while (counted := self.asked("POST", f"/Tally/{ALL}/added").json()) != wanted:
            assert all(counted.get(name, 0) <= times for name, times in wanted.items()), counted
            assert time.monotonic() < until, f"{counted} in place of {wanted}\n{self.told}"
            time.sleep(0.02)
        return counted

    def asked(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Ask either runtime until one answers."""
        until, told = time.monotonic() + END_SECONDS, ""
        while True:
            for runtime in self.runtimes:
                try:
                    answer = self.http.request(method, runtime.url + path, **more)
                except httpx.TransportError as error:
                    told = repr(error)
                    continue
                if answer.status_code < 400:
                    return answer
                told = answer.text
            assert time.monotonic() < until, f"{told}\n{self.told}"
            time.sleep(0.02)

    @property
    def told(self) -> str:
        """What the processes wrote."""
        logs = [each.log for each in (self.endpoint, *self.runtimes)]
        return "\n".join(f"{log.name}: {log.read_text()[-3_000:]}" for log in logs)

    def at(self, pid: int) -> Mortal:
        """The runtime with that process."""
        return next(each for each in self.runtimes if each.process.pid == pid)

    def driver(self, id_: str) -> int:
        """The process of the runtime that drives the invocation."""
        shown = self.asked("GET", f"/admin/invocations/{id_}").json()
        return int(shown["driven_by"].removeprefix(OWNER))

    def strike(self, victim: str, pid: int) -> None:
        """Kill the victim, and start it again; of the runtimes the one with that process."""
        self.counts[f"{victim} killed"] += 1
        if victim == DATABASE:
            kill(self.database)
            start_again(self.database)
            return
        found = self.endpoint if victim == ENDPOINT else self.at(pid)
        found.kill()
        found.start()
