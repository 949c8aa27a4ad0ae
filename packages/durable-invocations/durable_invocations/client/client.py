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

from durable_invocations.client.answers import ID_HEADER, JSON, Answer, JsonObject, read
from durable_invocations.client.errors import (
    InvocationFailedError,
    InvocationRefusedError,
    TokenRefusedError,
    truncate_reason,
)
from durable_invocations.client.requests import (
    build_auth_headers,
    build_delay_params,
    check_text,
    check_url,
    encode_idempotency_key,
    encode_text,
    path,
    to_json,
)
from durable_invocations.errors import DurableError, UnavailableError, WaitError

NOT_READY = 470
"""The status of an output that does not exist yet."""
_HERE = {"localhost", "127.0.0.1", "::1"}
_SECONDS = 30.0
"""How long one request may take; a longer wait is repeated."""
_SERVICE = {"name": str, "ty": str, "handlers": [{"name": str}]}
_DEPLOYMENT = {"id": str, "uri": str, "registered": str, "services": [_SERVICE]}
_NO_TOKEN = 401
_OVERLOADED = {408, 429, 502, 503, 504}


@dataclass(frozen=True, kw_only=True)
class SentInvocation:
    """An invocation that the runtime keeps; `is_new` is false if its idempotency key was known."""

    id: str
    is_new: bool


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The remedies that messages suggest."""

    unanswered: str = "Start it, or correct the address."
    failed: str = "See its journal: /admin/invocations/{invocation}."


class Client:
    """Talks to one runtime. Safe to use from several threads; close it, or use it in a `with`.

    Each method raises UnavailableError while the runtime does not answer, and
    InvocationRefusedError for a refused request.
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
        self.url, self._clock = check_url(url), clock
        self._advice = advice or Advice()
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Accept-Encoding": "identity", **build_auth_headers(token)},
            timeout=httpx.Timeout(_SECONDS, connect=5.0),
            transport=transport,
            # A proxy from the environment does not serve localhost.
            trust_env=urlsplit(url).hostname not in _HERE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def check_health(self) -> None:
        """Return if the runtime answers."""
        self._request_answer("GET", path("restate", "health"))

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

        It is sent first and then awaited, so no connection must live as long as the invocation.
        Raises WaitError if it has not ended after `seconds`.
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
    ) -> SentInvocation:
        """Invoke a handler, after `delay` seconds, and return once that is durable.

        The argument is sent as JSON; bytes are taken for JSON already. Without `idempotency_key`,
        a repeated request makes another invocation.
        """
        url_path = path(service, *(() if key is None else (key,)), handler, "send")
        headers: dict[str, str | bytes] = {}
        if idempotency_key is not None:
            headers["idempotency-key"] = encode_idempotency_key(idempotency_key)
        content = to_json(argument)
        if content is not None:
            headers["content-type"] = JSON
        params = build_delay_params(delay)
        answer = self._request_object(
            "POST", url_path, content=content, headers=headers, params=params
        )
        return SentInvocation(id=answer.text("invocationId"), is_new=answer["status"] == "Accepted")

    def attach(self, invocation: str, *, seconds: float | None = None) -> Any:
        """Wait for an invocation's end and return its output. Raises InvocationFailedError.

        Raises WaitError if it has not ended after `seconds`; None waits without limit.
        """
        deadline = None if seconds is None else self._clock() + seconds
        while True:
            remaining = _SECONDS if deadline is None else min(_SECONDS, deadline - self._clock())
            if remaining <= 0:
                raise WaitError(f"The invocation {invocation} has not ended in {seconds:g} s.")
            with suppress(httpx.ReadTimeout):
                url_path = path("restate", "invocation", invocation, "attach")
                return self._send_request("GET", url_path, timeout=remaining).output()

    def output(self, invocation: str, *names: str) -> Any:
        """The output of an invocation that has ended. Raises InvocationFailedError, and WaitError
        if it has not.

        Pass its id, or service, key if there is one, handler and idempotency key.
        """
        url_path = path("restate", "invocation", invocation, *names, "output")
        try:
            return self._request_answer("GET", url_path).output()
        except InvocationRefusedError as refused:
            if refused.status != NOT_READY:
                raise
            name = "/".join((invocation, *names))
            raise WaitError(f"The invocation {name} has not ended yet.") from refused

    def resolve(self, awakeable: str, value: Any = None) -> bool:
        """Complete an awakeable with a value; false if it was completed before."""
        content = to_json(value)
        url_path = path("restate", "awakeables", awakeable, "resolve")
        return self._request_change(
            "POST", url_path, content=content, headers={"content-type": JSON}
        )

    def reject(self, awakeable: str, reason: str) -> bool:
        """Complete an awakeable with a failure; false if it was completed before."""
        url_path = path("restate", "awakeables", awakeable, "reject")
        headers = {"content-type": "text/plain; charset=utf-8"}
        return self._request_change("POST", url_path, content=encode_text(reason), headers=headers)

    def register(self, uri: str, *, force: bool = False) -> Mapping[str, Any]:
        """Register the services at an address; a second time nothing changes, unless `force`."""
        body = {"uri": check_text(uri), "force": force}
        return self._request_object("POST", path("admin", "deployments"), json=body).check_shape(
            _DEPLOYMENT
        )

    def deployments(self) -> list[Mapping[str, Any]]:
        """The registered addresses and their services."""
        answer = self._request_object("GET", path("admin", "deployments"))
        return answer.check_shape({"deployments": [_DEPLOYMENT]}).get_objects("deployments")

    def services(self) -> list[Mapping[str, Any]]:
        """The services that can be invoked, with their handlers."""
        answer = self._request_object("GET", path("admin", "services"))
        return answer.check_shape({"services": [{**_SERVICE, "uri": (str, NoneType)}]}).get_objects(
            "services"
        )

    def invocations(self, limit: int = 100, **filters: str | None) -> list[Mapping[str, Any]]:
        """The latest invocations, by `service`, `handler`, `key` or `status`."""
        params = {name: check_text(value) for name, value in filters.items() if value is not None}
        query = {"limit": str(limit), **params}
        answer = self._request_object("GET", path("admin", "invocations"), params=query)
        return answer.get_objects("invocations")

    def invocation(self, invocation: str) -> Mapping[str, Any]:
        """An invocation with its journal."""
        return self._request_object("GET", path("admin", "invocations", invocation))

    def cancel(self, invocation: str) -> bool:
        """Cancel an invocation: what its handler awaits fails, and the handler may clean up."""
        return self.change_invocation(invocation, "cancel")

    def kill(self, invocation: str) -> bool:
        """End an invocation and those that it called at once."""
        return self.change_invocation(invocation, "kill")

    def pause(self, invocation: str) -> bool:
        """Stop driving an invocation until it is resumed."""
        return self.change_invocation(invocation, "pause")

    def resume(self, invocation: str) -> bool:
        """Try a paused invocation again now."""
        return self.change_invocation(invocation, "resume")

    def purge(self, invocation: str) -> bool:
        """Forget an invocation that has ended: its output, its journal, its idempotency key."""
        return self.change_invocation(invocation, "purge")

    def change_invocation(self, invocation: str, verb: str) -> bool:
        """`cancel`, `kill`, `pause`, `resume` or `purge` an invocation; whether that changed it."""
        return self._request_change("PATCH", path("admin", "invocations", invocation, verb))

    def _request_change(self, method: str, url_path: str, **request: Any) -> bool:
        return self._request_object(method, url_path, **request).flag("changed")

    def _request_object(self, method: str, url_path: str, **request: Any) -> JsonObject:
        return self._request_answer(method, url_path, **request).object

    def _request_answer(self, method: str, url_path: str, **request: Any) -> Answer:
        try:
            return self._send_request(method, url_path, **request)
        except httpx.ReadTimeout as error:
            raise UnavailableError(self._format_unanswered("does not answer in time")) from error

    def _send_request(self, method: str, url_path: str, **request: Any) -> Answer:
        """The answer to a successful request. Raises httpx.ReadTimeout too."""
        try:
            with self._http.stream(method, url_path, **request) as response:
                answer = read(self.url, response, self._clock)
        except httpx.ReadTimeout:
            raise
        # An invalid host name, such as a..b, raises UnicodeError.
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise UnavailableError(self._format_unanswered(f"does not answer: {error}")) from error
        if httpx.codes.is_success(answer.status):
            return answer
        raise self._make_error(answer)

    def _format_unanswered(self, problem: str) -> str:
        return f"The runtime of invocations at {self.url} {problem}. {self._advice.unanswered}"

    def _make_error(self, answer: Answer) -> DurableError:
        code, reason = answer.reason()
        excerpt = truncate_reason(reason)
        if (invocation := answer.headers.get(ID_HEADER)) is not None:
            message = f"The invocation {invocation} failed with {code}: {excerpt}"
            advice = self._advice.failed.format(invocation=invocation)
            return InvocationFailedError(
                f"{message.rstrip('.')}. {advice}",
                invocation=invocation,
                status=code,
                reason=reason,
            )
        if answer.status in _OVERLOADED:
            problem = f"answers {answer.status}: {excerpt}"
            return UnavailableError(f"The runtime of invocations at {self.url} {problem}")
        message = f"The runtime of invocations refused with {answer.status}: {excerpt}"
        if answer.status == _NO_TOKEN:
            return TokenRefusedError(message, status=answer.status, reason=reason)
        return InvocationRefusedError(message, status=answer.status, reason=reason)
