"""Checks whether the Spark Connect server answers and runs jobs."""

from __future__ import annotations

import asyncio
import time
import uuid

from iscp_dagster.local.services.rpc import Rpc, RpcError, field
from iscp_dagster.local.services.service import Stalled
from iscp_dagster.spark.remote import Remote

_SERVICE = "/spark.connect.SparkConnectService"
_ANSWER_SECONDS = 5.0
_JOB_SECONDS = 600.0
_JOB_EVERY = 10.0
_USER = field(2, field(1, "iscp"))


class SparkHealth:
    """Asks a server for its version, and has it run a job of one row.

    The job queues like any other, so a busy server is not unwell as long as it answers. A server
    is unwell when it fails the job, or when it is idle and has not run it within `job_seconds`.
    Everything happens in one session, without Python.
    """

    def __init__(self, address: str, job_seconds: float = _JOB_SECONDS) -> None:
        self._job_seconds = job_seconds
        remote = Remote.parse(address)
        self._rpc, self._job_rpc = (
            Rpc(remote.place, remote.headers, secure=remote.secure) for _ in range(2)
        )
        self._job: asyncio.Task[str] | None = None
        self._ran = 0.0
        self._stalled = Stalled()
        self.jobs = 0
        self._session = field(1, str(uuid.uuid4())) + _USER

    async def problem(self, _since: float) -> str:
        """The problem in one line; empty when there is none."""
        try:
            await asyncio.to_thread(
                self._rpc.call,
                f"{_SERVICE}/AnalyzePlan",
                self._session + field(10, b""),
                _ANSWER_SECONDS,
            )
        except RpcError as error:
            self._renew()
            return "does not answer" if error.late else f"does not answer: {error}"
        return await self._work()

    async def _work(self) -> str:
        """Start a job when one is due; return the problem that the latest one showed."""
        if self._job is None:
            if time.monotonic() - self._ran < _JOB_EVERY:
                return ""
            self._job = asyncio.create_task(asyncio.to_thread(self._run_job))
        await asyncio.wait([self._job], timeout=_ANSWER_SECONDS)
        if not self._job.done():
            return self._stalled
        job, self._job = self._job, None
        self._stalled = Stalled()
        if isinstance(said := job.result(), Stalled):
            self._stalled = said
        if not job.result():
            self._ran = time.monotonic()
        return job.result()

    def _run_job(self) -> str:
        one_row = field(15, field(2, 1) + field(3, 1) + field(4, 1))
        plan = field(3, field(1, one_row))
        try:
            self._job_rpc.drain(f"{_SERVICE}/ExecutePlan", self._session + plan, self._job_seconds)
        except RpcError as error:
            self._renew()
            if error.late:
                return Stalled(f"has run no job for {self._job_seconds:.0f} seconds")
            return f"cannot run a job: {error}"
        self.jobs += 1
        return ""

    def _renew(self) -> None:
        """Switch to a new session: if the server has forgotten this one, it would fail for ever."""
        self._session = field(1, str(uuid.uuid4())) + _USER
