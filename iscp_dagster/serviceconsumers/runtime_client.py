"""The deployment's runtime of invocations, as service consumers use it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from durable_invocations import errors
from durable_invocations.client.client import Advice, Client
from durable_invocations.client.errors import InvocationFailedError, InvocationRefusedError
from durable_invocations.protocol.services import ServiceKind
from durable_invocations.runtime.http.exchange import Address
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.variables import INVOCATIONS_TOKEN, INVOCATIONS_URL
from iscp_dagster.serviceconsumers.errors import raise_job_errors
from iscp_dagster.serviceconsumers.runtime_protocol import (
    ENDED,
    InvocationState,
    InvocationUnsettledError,
)

_GONE = 404
ADVICE = Advice(
    unanswered=f"Start it (`iscp up`, or `iscp invocations serve`), or correct {INVOCATIONS_URL}.",
    failed="`iscp invocations show {invocation}` prints its journal.",
)
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class RuntimeClient:
    """See `services.InvocationRuntime`."""

    client: Client
    _keyed: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    _registering: threading.Lock = field(default_factory=threading.Lock)

    @raise_job_errors()
    def ensure_handler(self, url: str, service: str, handler: str) -> bool:
        target = url, service, handler
        with self._registering:
            if target not in self._keyed:
                self._keyed[target] = _is_keyed(self._ensure_serving(*target), *target)
            return self._keyed[target]

    @raise_job_errors()
    def send(
        self, service: str, handler: str, body: bytes, *, key: str | None, idempotency_key: str
    ) -> InvocationState:
        try:
            invocation = self.client.send(
                service, handler, body, key=key, idempotency_key=idempotency_key
            )
        except InvocationRefusedError as error:
            if error.status != _GONE:
                raise
            self._forget_handler(service, handler)
            raise InvocationUnsettledError(
                f"The runtime no longer knows {service}/{handler} as it did: {error.reason} The "
                "next iteration looks for it anew."
            ) from error
        return InvocationState(
            id=invocation.id,
            status="accepted",
            link=f"{self.client.url}/admin/invocations/{invocation.id}",
            is_new=invocation.is_new,
        )

    @raise_job_errors()
    def has_invocation(
        self, service: str, handler: str, *, key: str | None, idempotency_key: str
    ) -> bool:
        keys = () if key is None else (key,)
        try:
            self.client.output(service, *keys, handler, idempotency_key)
        except InvocationFailedError:
            return False
        except errors.WaitError:
            return True
        except InvocationRefusedError as error:
            if error.status != _GONE:
                raise
            return False
        return True

    @raise_job_errors()
    def poll_invocation(self, invoked: InvocationState, seconds: float) -> InvocationState:
        try:
            if seconds > 0:
                self.client.attach(invoked.id, seconds=seconds)
            else:
                self.client.output(invoked.id)
        except InvocationFailedError as error:
            failure = f"{error.status} {error.reason}"
            return replace(invoked, status=ENDED, failure=failure)
        except errors.WaitError:
            return self._refresh_status(invoked)
        except InvocationRefusedError as error:
            if error.status != _GONE:
                raise
            raise InvocationUnsettledError(
                f"Invocation {invoked.id} is no longer known to the runtime, which purged it; the "
                "next iteration invokes the handler anew."
            ) from error
        return replace(invoked, status=ENDED, failure="")

    def _forget_handler(self, service: str, handler: str) -> None:
        with self._registering:
            for target in [target for target in self._keyed if target[1:] == (service, handler)]:
                del self._keyed[target]

    def _refresh_status(self, invoked: InvocationState) -> InvocationState:
        invocation = self.client.invocation(invoked.id)
        # It may have ended since; then the next look says how.
        status = str(invocation["status"]) if invocation["status"] != ENDED else invoked.status
        error = invocation["error"]
        failure = f"{error['code']} {error['message']}" if error else ""
        return replace(invoked, status=status, failure=failure)

    def _ensure_serving(self, url: str, service: str, handler: str) -> Mapping[str, Any] | None:
        """The service as the runtime invokes it, with that handler; None if it has none.

        Registers the address if the runtime does not know it, or knows no such handler. A known
        address that no longer serves the service was replaced by a person.
        """
        address = Address.parse(url).url
        registered = self._find_service(service, handler)
        if registered is not None and registered["uri"] == address:
            return registered
        if registered is not None and address in {
            deployment["uri"] for deployment in self.client.deployments()
        }:
            _LOGGER.warning(
                "%s/%s is invoked at %s, which was registered after the consumer's address %s; to "
                "have it there again, run `iscp invocations deploy --force %s`.",
                *(service, handler, registered["uri"], address, address),
            )
            return registered
        self.client.register(url, force=True)
        registered = self._find_service(service, handler)
        return registered if registered is not None and registered["uri"] == address else None

    def _find_service(self, service: str, handler: str) -> Mapping[str, Any] | None:
        for candidate in self.client.services():
            if candidate["name"] == service and handler in {
                entry["name"] for entry in candidate["handlers"]
            }:
                return candidate
        return None


def _is_keyed(registered: Mapping[str, Any] | None, url: str, service: str, handler: str) -> bool:
    if registered is None:
        raise ConfigError(
            f"The service endpoint {url} serves no handler {service}/{handler}; correct the "
            "consumer's handler= or url=, or deploy the service that has it."
        )
    kind = ServiceKind(registered["ty"])
    if kind is ServiceKind.WORKFLOW:
        raise ConfigError(
            f"{service}/{handler} is a handler of a workflow, which runs once for a key; invoke "
            "one of a service or a virtual object with changes."
        )
    return kind.keyed


def open_client(url: str, token: str) -> Client:
    """A client of the deployment's runtime. Raises ConfigError."""
    try:
        return Client(url, token, advice=ADVICE)
    except errors.ConfigError as error:
        raise ConfigError(f"{INVOCATIONS_URL} or {INVOCATIONS_TOKEN}: {error}") from error


@lru_cache(maxsize=4)
def open_runtime(url: str, token: str = "") -> RuntimeClient:
    """The runtime at an address, with one client for the whole process. Raises ConfigError."""
    return RuntimeClient(open_client(url, token))
