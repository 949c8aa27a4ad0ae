"""A backend of the ingress over a real store, whose invocations a test drives by hand."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.frames import Frame, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.services import HandlerKind, ServiceKind
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.store.deployments import (
    Deployment,
    RegisteredHandler,
    RegisteredService,
)
from durable_invocations.runtime.store.operations import Claim, CommitEntry, Finish, Suspend

URL = "http://127.0.0.1:9080"
JSON = {"contentType": "application/json"}
EXCLUSIVE, SHARED = HandlerKind.EXCLUSIVE, HandlerKind.SHARED
SERVICES = (
    RegisteredService(
        name="Greeter",
        kind=ServiceKind.SERVICE,
        handlers=(
            RegisteredHandler(name="greet", described={"input": JSON, "output": JSON}),
            RegisteredHandler(name="raw", described={"output": {"contentType": "text/plain"}}),
        ),
    ),
    RegisteredService(
        name="Counter",
        kind=ServiceKind.OBJECT,
        handlers=(
            RegisteredHandler(name="add", kind=EXCLUSIVE),
            RegisteredHandler(name="get", kind=SHARED),
        ),
    ),
    RegisteredService(
        name="Signup",
        kind=ServiceKind.WORKFLOW,
        handlers=(RegisteredHandler(name="run", kind=HandlerKind.WORKFLOW),),
    ),
)


class ByHand:
    """The backend; `claim`, `commit` and `finish` are what a runtime would do."""

    def __init__(self, store: SqlStore) -> None:
        self.store, self.asked, self.discovered = store, 0, 1
        self.services: tuple[RegisteredService, ...] = SERVICES
        self.refusing: Exception | None = None
        self.waiting = threading.Semaphore(0)
        self._driven: dict[str, Any] = {}

    async def do(self, operation: Any) -> Any:
        return await asyncio.to_thread(self.store.do, operation)

    async def read(self, question: Any, *arguments: Any) -> Any:
        self.asked += 1
        return await asyncio.to_thread(question, *arguments)

    async def wait_for_result(self, id_: str) -> Any:
        self.waiting.release()
        while True:
            found = await asyncio.to_thread(self.store.read_results, [id_])
            if found.get(id_, "") is not None:
                return found.get(id_)
            await asyncio.sleep(0.005)

    async def discover(self, url: str) -> tuple[Deployment, tuple[RegisteredService, ...]]:
        if self.refusing is not None:
            raise self.refusing
        self.discovered += 1
        return Deployment(id=f"dp_{self.discovered}", url=url, registered=1), self.services

    def claim(self) -> list[str]:
        """Take everything that is ready; the ids."""
        claimed = self.store.do(Claim(owner="hand", most=100))
        self._driven |= {each.id: each for each in claimed}
        return [each.id for each in claimed]

    def commit(self, id_: str, index: int, message: Any) -> Frame:
        entry = make_frame(message)
        fence = self._driven[id_].fence
        self.store.do(CommitEntry(id=id_, fence=fence, index=index, frame=entry))
        return entry

    def suspend(self, id_: str, *indexes: int) -> None:
        self.store.do(Suspend(id=id_, fence=self._driven[id_].fence, indexes=indexes))

    def finish(self, id_: str, output: bytes | Failure, index: int = 1) -> None:
        """End an invocation, claimed now if it was not, with its output at `index`."""
        if id_ not in self._driven:
            self.claim()
        if isinstance(output, Failure):
            message = pb.OutputEntryMessage(failure=output.written())
        else:
            message = pb.OutputEntryMessage(value=output)
        self.commit(id_, index, message)
        self.store.do(Finish(id=id_, fence=self._driven[id_].fence))
