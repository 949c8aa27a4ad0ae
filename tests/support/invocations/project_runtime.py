"""The project's runtime in the test's event loop, called by HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from sqlalchemy import Engine

from durable_invocations.ingress.app import IngressSettings, create_app
from durable_invocations.runtime.retries import RetryPolicy
from durable_invocations.runtime.runtime import Runtime
from durable_invocations.runtime.settings import RuntimeSettings
from durable_invocations.runtime.sql.store import SqlStore
from support.peers.fault_plans import FailedError

QUICK = RetryPolicy(initial=0.01, cap=0.1, attempts=None)


@dataclass(frozen=True)
class HttpCaller:
    """Calls handlers by the runtime's HTTP, as a client of any language does."""

    http: httpx.AsyncClient

    async def call(
        self,
        service: str,
        handler: str,
        argument: Any = None,
        *,
        key: str = "",
        headers: dict[str, str] | None = None,
    ) -> Any:
        """Return the handler's output; raises FailedError for its failure."""
        answer = await self._post(service, handler, argument, key=key, headers=headers or {})
        if answer.status_code >= 400:
            raise FailedError({"code": answer.status_code, "message": answer.json()["message"]})
        return answer.json() if answer.content else None

    async def send(self, service: str, handler: str, argument: Any = None, *, key: str = "") -> str:
        """Begin an invocation; return its id."""
        answer = await self._post(service, f"{handler}/send", argument, key=key, headers={})
        assert answer.status_code in {200, 202}, answer.text
        return answer.json()["invocationId"]

    async def _post(
        self, service: str, handler: str, argument: Any, *, key: str, headers: dict[str, str]
    ) -> httpx.Response:
        path = f"/{service}/{key}/{handler}" if key else f"/{service}/{handler}"
        body = b"" if argument is None else json.dumps(argument).encode()
        media = {"content-type": "application/json"} if body else {}
        return await self.http.post(path, content=body, headers=media | headers)

    async def register(self, url: str) -> dict[str, Any]:
        """Register what is served at the address."""
        answer = await self.http.post("/admin/deployments", json={"uri": url})
        assert answer.status_code in {200, 201}, answer.text
        return answer.json()

    async def show(self, id_: str) -> dict[str, Any]:
        """Return an invocation with its journal."""
        answer = await self.http.get(f"/admin/invocations/{id_}")
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def running(
    engine: Engine, url: str = "", *, http: int | None = None, **settings: Any
) -> AsyncIterator[HttpCaller]:
    """Run a runtime on the database, which drives the services at `url`, in this block."""
    store = SqlStore(engine)
    store.ensure()
    async with Runtime(store, RuntimeSettings(**{"policy": QUICK, **settings})) as runtime:
        transport = httpx.ASGITransport(create_app(IngressSettings(backend=runtime)))
        base = "http://127.0.0.1:4080"
        async with httpx.AsyncClient(transport=transport, base_url=base, timeout=60) as client:
            if url:
                await runtime.register(url, http=http)
            yield HttpCaller(client)
