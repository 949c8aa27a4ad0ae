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
from iscp_dagster.serviceconsumers.errors import as_job_errors
from iscp_dagster.serviceconsumers.services import ENDED, InvocationGoingError, Invoked

_GONE = 404
ADVICE = Advice(
    unanswered=f"Start it (`iscp up`, or `iscp invocations serve`), or correct {INVOCATIONS_URL}.",
    failed="`iscp invocations show {invocation}` prints its journal.",
)
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class RuntimeServices:
    """See `services.Services`."""

    client: Client
    _keyed: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    _registering: threading.Lock = field(default_factory=threading.Lock)

    @as_job_errors()
    def keyed(self, url: str, service: str, handler: str) -> bool:
        asked = url, service, handler
        with self._registering:
            if asked not in self._keyed:
                self._keyed[asked] = _is_keyed(self._serving(*asked), *asked)
            return self._keyed[asked]

    @as_job_errors()
    def send(
        self, service: str, handler: str, body: bytes, *, key: str | None, idempotency_key: str
    ) -> Invoked:
        try:
            sent = self.client.send(
                service, handler, body, key=key, idempotency_key=idempotency_key
            )
        except InvocationRefusedError as error:
            if error.status != _GONE:
                raise
            self._forget(service, handler)
            raise InvocationGoingError(
                f"The runtime no longer knows {service}/{handler} as it did: {error.reason} The "
                "next iteration looks for it anew."
            ) from error
        return Invoked(
            id=sent.id,
            status="accepted",
            link=f"{self.client.url}/admin/invocations/{sent.id}",
            is_new=sent.is_new,
        )

    @as_job_errors()
    def stands(self, service: str, handler: str, *, key: str | None, idempotency_key: str) -> bool:
        keyed = () if key is None else (key,)
        try:
            self.client.output(service, *keyed, handler, idempotency_key)
        except InvocationFailedError:
            return False
        except errors.WaitError:
            return True
        except InvocationRefusedError as error:
            if error.status != _GONE:
                raise
            return False
        return True

    @as_job_errors()
    def look(self, invoked: Invoked, seconds: float) -> Invoked:
        try:
            if seconds > 0:
                self.client.attach(invoked.id, seconds=seconds)
            else:
                self.client.output(invoked.id)
        except InvocationFailedError as error:
            failure = f"{error.status} {error.reason}"
            return replace(invoked, status=ENDED, failure=failure)
        except errors.WaitError:
            return self._described(invoked)
        except InvocationRefusedError as error:
            if error.status != _GONE:
                raise
            raise InvocationGoingError(
                f"Invocation {invoked.id} is no longer known to the runtime, which purged it; the "
                "next iteration invokes the handler anew."
            ) from error
        return replace(invoked, status=ENDED, failure="")

    def _forget(self, service: str, handler: str) -> None:
        with self._registering:
            for asked in [each for each in self._keyed if each[1:] == (service, handler)]:
                del self._keyed[asked]

    def _described(self, invoked: Invoked) -> Invoked:
        told = self.client.invocation(invoked.id)
        # It may have ended since; then the next look says how.
        status = str(told["status"]) if told["status"] != ENDED else invoked.status
        error = told["error"]
        failure = f"{error['code']} {error['message']}" if error else ""
        return replace(invoked, status=status, failure=failure)

    def _serving(self, url: str, service: str, handler: str) -> Mapping[str, Any] | None:
        """The service as the runtime invokes it, with that handler; None if it has none.

        Registers the address if the runtime does not know it, or knows no such handler. One that
        it knows, and that serves the service no more, was replaced by a person.
        """
        address = Address.parsed(url).url
        found = self._known(service, handler)
        if found is not None and found["uri"] == address:
            return found
        if found is not None and address in {each["uri"] for each in self.client.deployments()}:
            _LOGGER.warning(
                "%s/%s is invoked at %s, which was registered after the consumer's address %s; to "
                "have it there again, run `iscp invocations deploy --force %s`.",
                *(service, handler, found["uri"], address, address),
            )
            return found
        self.client.register(url, force=True)
        found = self._known(service, handler)
        return found if found is not None and found["uri"] == address else None

    def _known(self, service: str, handler: str) -> Mapping[str, Any] | None:
        for each in self.client.services():
            if each["name"] == service and handler in {one["name"] for one in each["handlers"]}:
                return each
        return None


def _is_keyed(found: Mapping[str, Any] | None, url: str, service: str, handler: str) -> bool:
    if found is None:
        raise ConfigError(
            f"The service endpoint {url} serves no handler {service}/{handler}; correct the "
            "consumer's handler= or url=, or deploy the service that has it."
        )
    kind = ServiceKind(found["ty"])
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
def runtime_at(url: str, token: str = "") -> RuntimeServices:
    """The runtime at an address, with one client for the whole process. Raises ConfigError."""
    return RuntimeServices(open_client(url, token))
