"""A client of the runtime of invocations: its ingress, and its administration."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import NoneType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from durable_invocations.client.answers import ID_HEADER, JSON, Answer, Told, read
from durable_invocations.client.errors import (
    InvocationFailedError,
    InvocationRefusedError,
    TokenRefusedError,
    shown,
)
from durable_invocations.client.requests import (
    authorization,
    checked,
    checked_url,
    encoded,
    idempotency,
    milliseconds,
    path,
    written,
)
from durable_invocations.errors import DurableError, UnavailableError, WaitError

NOT_READY = 470
"""The status of an output that is not there yet."""
_HERE = {"localhost", "127.0.0.1", "::1"}
_SECONDS = 30.0
"""How long one request may take; what takes longer is asked for again."""
_SERVICE = {"name": str, "ty": str, "handlers": [{"name": str}]}
_DEPLOYMENT = {"id": str, "uri": str, "registered": str, "services": [_SERVICE]}
_NO_TOKEN = 401
_OVERLOADED = {408, 429, 502, 503, 504}


@dataclass(frozen=True, kw_only=True)
class Sent:
    """An invocation that the runtime keeps; not `is_new` if its idempotency key had made it."""

    id: str
    is_new: bool


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What messages tell people to do."""

    unanswered: str = "Start it, or correct the address."
    failed: str = "Its journal tells more: /admin/invocations/{invocation}."


class Client:
    """Talks to one runtime. Safe to use from several threads; close it, or use it in a `with`.

    Each method raises UnavailableError while the runtime does not answer, and
    InvocationRefusedError for what it refuses.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        advice: Advice | None = None,
    ) -> None:
        self.url, self._clock = checked_url(url), clock
        self._advice = advice or Advice()
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Accept-Encoding": "identity", **authorization(token)},
            timeout=httpx.Timeout(_SECONDS, connect=5.0),
            transport=transport,
            # A proxy from the environment does not serve this machine itself.
            trust_env=urlsplit(url).hostname not in _HERE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def health(self) -> None:
        """Returns if the runtime answers."""
        self._asked("GET", path("restate", "health"))

    def call(
        self,
        service: str,
        handler: str,
        argument: Any = None,
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        seconds: float | None = None,
    ) -> Any:
        """Invoke a handler and return its output. Raises InvocationFailedError.

        It is sent first and waited for then, so that neither takes a connection that must live as
        long as the invocation; WaitError if it has not ended after `seconds`.
        """
        sent = self.send(service, handler, argument, key=key, idempotency_key=idempotency_key)
        return self.attach(sent.id, seconds=seconds)

    def send(
        self,
        service: str,
        handler: str,
        argument: Any = None,
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        delay: float = 0.0,
    ) -> Sent:
        """Have a handler invoked, after `delay` seconds, and return when that is durable.

        The argument is sent as JSON; bytes are sent as they are, as JSON that is written already.
        Without `idempotency_key`, a request that is repeated makes another invocation.
        """
        place = path(service, *(() if key is None else (key,)), handler, "send")
        headers: dict[str, str | bytes] = {}
        if idempotency_key is not None:
            headers["idempotency-key"] = idempotency(idempotency_key)
        content = written(argument)
        if content is not None:
            headers["content-type"] = JSON
        params = milliseconds(delay)
        told = self._told("POST", place, content=content, headers=headers, params=params)
        return Sent(id=told.text("invocationId"), is_new=told["status"] == "Accepted")

    def attach(self, invocation: str, *, seconds: float | None = None) -> Any:
        """Wait for an invocation's end and return its output. Raises InvocationFailedError.

        WaitError if it has not ended after `seconds`; None: however long it takes.
        """
        until = None if seconds is None else self._clock() + seconds
        while True:
            left = _SECONDS if until is None else min(_SECONDS, until - self._clock())
            if left <= 0:
                raise WaitError(f"The invocation {invocation} has not ended in {seconds:g} s.")
            with suppress(httpx.ReadTimeout):
                place = path("restate", "invocation", invocation, "attach")
                return self._answered("GET", place, timeout=left).output()

    def output(self, invocation: str, *names: str) -> Any:
        """The output of an invocation that has ended. Raises InvocationFailedError, and WaitError
        if it has not.

        It is named by its id, or as service, key if there is one, handler and idempotency key.
        """
        place = path("restate", "invocation", invocation, *names, "output")
        try:
            return self._asked("GET", place).output()
        except InvocationRefusedError as refused:
            if refused.status != NOT_READY:
                raise
            named = "/".join((invocation, *names))
            raise WaitError(f"The invocation {named} has not ended yet.") from refused

    def resolve(self, awakeable: str, value: Any = None) -> bool:
        """Complete an awakeable with a value; whether it was not completed before."""
        content = written(value)
        place = path("restate", "awakeables", awakeable, "resolve")
        return self._changed("POST", place, content=content, headers={"content-type": JSON})

    def reject(self, awakeable: str, reason: str) -> bool:
        """Complete an awakeable with a failure; whether it was not completed before."""
        place = path("restate", "awakeables", awakeable, "reject")
        headers = {"content-type": "text/plain; charset=utf-8"}
        return self._changed("POST", place, content=encoded(reason), headers=headers)

    def register(self, uri: str, *, force: bool = False) -> Mapping[str, Any]:
        """Register the services at an address; a second time nothing changes, unless `force`."""
        asked = {"uri": checked(uri), "force": force}
        return self._told("POST", path("admin", "deployments"), json=asked).shaped(_DEPLOYMENT)

    def deployments(self) -> list[Mapping[str, Any]]:
        """The registered addresses and their services."""
        told = self._told("GET", path("admin", "deployments"))
        return told.shaped({"deployments": [_DEPLOYMENT]}).objects("deployments")

    def services(self) -> list[Mapping[str, Any]]:
        """The services that can be invoked, with their handlers."""
        told = self._told("GET", path("admin", "services"))
        return told.shaped({"services": [{**_SERVICE, "uri": (str, NoneType)}]}).objects("services")

    def invocations(self, limit: int = 100, **chosen: str | None) -> list[Mapping[str, Any]]:
        """The latest invocations, by `service`, `handler`, `key` or `status`."""
        params = {name: checked(value) for name, value in chosen.items() if value is not None}
        asked = {"limit": str(limit), **params}
        told = self._told("GET", path("admin", "invocations"), params=asked)
        return told.objects("invocations")

    def invocation(self, invocation: str) -> Mapping[str, Any]:
        """An invocation with its journal."""
        return self._told("GET", path("admin", "invocations", invocation))

    def cancel(self, invocation: str) -> bool:
        """Cancel an invocation: its handler learns it at what it awaits, and may clean up."""
        return self.change(invocation, "cancel")

    def kill(self, invocation: str) -> bool:
        """End an invocation, and those that it called, at once."""
        return self.change(invocation, "kill")

    def pause(self, invocation: str) -> bool:
        """Have nobody drive an invocation until it is resumed."""
        return self.change(invocation, "pause")

    def resume(self, invocation: str) -> bool:
        """Have a paused invocation tried again, now."""
        return self.change(invocation, "resume")

    def purge(self, invocation: str) -> bool:
        """Forget an invocation that has ended: its output, its journal, its idempotency key."""
        return self.change(invocation, "purge")

    def change(self, invocation: str, verb: str) -> bool:
        """`cancel`, `kill`, `pause`, `resume` or `purge` an invocation; whether that changed it."""
        return self._changed("PATCH", path("admin", "invocations", invocation, verb))

    def _changed(self, method: str, place: str, **request: Any) -> bool:
        return self._told(method, place, **request).flag("changed")

    def _told(self, method: str, place: str, **request: Any) -> Told:
        return self._asked(method, place, **request).object

    def _asked(self, method: str, place: str, **request: Any) -> Answer:
        try:
            return self._answered(method, place, **request)
        except httpx.ReadTimeout as error:
            raise UnavailableError(self._unanswered("does not answer in time")) from error

    def _answered(self, method: str, place: str, **request: Any) -> Answer:
        """The answer to a request that is carried out. Raises httpx.ReadTimeout, and as others."""
        try:
            with self._http.stream(method, place, **request) as response:
                answer = read(self.url, response, self._clock)
        except httpx.ReadTimeout:
            raise
        # A host that is no name, such as a..b, is a UnicodeError.
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise UnavailableError(self._unanswered(f"does not answer: {error}")) from error
        if httpx.codes.is_success(answer.status):
            return answer
        raise self._problem(answer)

    def _unanswered(self, how: str) -> str:
        return f"The runtime of invocations at {self.url} {how}. {self._advice.unanswered}"

    def _problem(self, answer: Answer) -> DurableError:
        code, reason = answer.reason()
        said = shown(reason)
        if (invocation := answer.headers.get(ID_HEADER)) is not None:
            told = f"The invocation {invocation} failed with {code}: {said}"
            see = self._advice.failed.format(invocation=invocation)
            return InvocationFailedError(
                f"{told.rstrip('.')}. {see}", invocation=invocation, status=code, reason=reason
            )
        if answer.status in _OVERLOADED:
            how = f"answers {answer.status}: {said}"
            return UnavailableError(f"The runtime of invocations at {self.url} {how}")
        told = f"The runtime of invocations refused with {answer.status}: {said}"
        if answer.status == _NO_TOKEN:
            return TokenRefusedError(told, status=answer.status, reason=reason)
        return InvocationRefusedError(told, status=answer.status, reason=reason)
