"""Checks whether the Spark Connect server answers and runs jobs."""

from __future__ import annotations

import asyncio
import time
import uuid

from iscp_dagster.local.services.rpc import Rpc, RpcError, encode_field
from iscp_dagster.local.services.service import StalledProblem
from iscp_dagster.spark.remote import SparkRemote

_SERVICE = "/spark.connect.SparkConnectService"
_ANSWER_SECONDS = 5.0
_JOB_SECONDS = 600.0
_JOB_EVERY = 10.0
_USER = encode_field(2, encode_field(1, "iscp"))


class SparkHealth:
    """Requests a server's version, and runs a job of one row on it.

    The job queues like any other, so a busy server is not unwell as long as it answers. A server
    is unwell when it fails the job, or when it is idle and has not run it within `job_seconds`.
    Everything happens in one session, without Python.
    """

    def __init__(self, address: str, job_seconds: float = _JOB_SECONDS) -> None:
        self._job_seconds = job_seconds
        remote = SparkRemote.parse(address)
        self._rpc, self._job_rpc = (
            Rpc(remote.place, remote.headers, secure=remote.secure) for _ in range(2)
        )
        self._job: asyncio.Task[str] | None = None
        self._succeeded_at = 0.0
        self._stalled = StalledProblem()
        self.jobs = 0
        self._session = encode_field(1, str(uuid.uuid4())) + _USER

    async def find_problem(self, _since: float) -> str:
        """The problem in one line; empty when there is none."""
        try:
            await asyncio.to_thread(
                self._rpc.call,
                f"{_SERVICE}/AnalyzePlan",
                self._session + encode_field(10, b""),
                _ANSWER_SECONDS,
            )
        except RpcError as error:
            self._renew_session()
            return "does not answer" if error.late else f"does not answer: {error}"
        return await self._find_job_problem()

    async def _find_job_problem(self) -> str:
        """Start a job when one is due; return the problem that the latest one showed."""
        if self._job is None:
            if time.monotonic() - self._succeeded_at < _JOB_EVERY:
                return ""
            self._job = asyncio.create_task(asyncio.to_thread(self._run_job))
        await asyncio.wait([self._job], timeout=_ANSWER_SECONDS)
        if not self._job.done():
            return self._stalled
        job, self._job = self._job, None
        self._stalled = StalledProblem()
        if isinstance(problem := job.result(), StalledProblem):
            self._stalled = problem
        if not job.result():
            self._succeeded_at = time.monotonic()
        return job.result()

    def _run_job(self) -> str:
        one_row = encode_field(15, encode_field(2, 1) + encode_field(3, 1) + encode_field(4, 1))
        plan = encode_field(3, encode_field(1, one_row))
        try:
            self._job_rpc.drain(f"{_SERVICE}/ExecutePlan", self._session + plan, self._job_seconds)
        except RpcError as error:
            self._renew_session()
            if error.late:
                return StalledProblem(f"has run no job for {self._job_seconds:.0f} seconds")
            return f"cannot run a job: {error}"
        self.jobs += 1
        return ""

    def _renew_session(self) -> None:
        """Switch to a new session: if the server has forgotten this one, it would fail for ever."""
        self._session = encode_field(1, str(uuid.uuid4())) + _USER
