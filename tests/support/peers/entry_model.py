"""The driver's own model of entries: state, promises, timers, calls and awakeables."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from support.peers.fault_plans import Invocation, parse_awakeable
from support.peers.proto_text import shapes
from support.peers.wire import Packet, Result, result_of, write

EMPTY: Result = ("empty", {})
GONE = {"code": 404, "message": "not found"}
CANCELED = {"code": 409, "message": "canceled"}
Submit = Callable[..., Invocation]
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


class World:
    """Performs the entries of all invocations; results come to their journals."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self.state: dict[tuple[str, str], dict[bytes, bytes]] = defaultdict(dict)
        self.promises: dict[tuple[str, str, str], asyncio.Future[Result]] = {}
        self.invocations: dict[bytes, Invocation] = {}
        self.by_name: dict[Any, Invocation] = {}

    def perform(self, invocation: Invocation, index: int, entry: Packet) -> None:
        """Perform a stored entry."""
        name = _WORD.sub("_", entry.name.removesuffix("EntryMessage")).lower()
        action = getattr(self, f"_{name}", None)
        if action is not None:
            action(invocation, index, entry)
        if invocation.canceled:
            self._fail_open(invocation)

    def stored(self, invocation: Invocation) -> dict[bytes, bytes]:
        return self.state[invocation.service, invocation.key]

    def _get_state(self, invocation: Invocation, index: int, entry: Packet) -> None:
        """An eager result must be that of the model, if no other invocation writes."""
        value = self.stored(invocation).get(entry.message["key"])
        result = EMPTY if value is None else ("value", value)
        if entry.completed and invocation.alone:
            eager = result_of(entry)
            assert eager == result, f"entry {index} says {eager} of the state, which has {result}"
        invocation.complete(index, result)

    def _get_state_keys(self, invocation: Invocation, index: int, entry: Packet) -> None:
        kind = shapes()["StateKeys"]
        keys = sorted(self.stored(invocation))
        if entry.completed and invocation.alone:
            assert sorted(entry.message["value"]["keys"]) == keys
        invocation.complete(index, ("value", write(kind, {"keys": keys})))

    def _set_state(self, invocation: Invocation, index: int, entry: Packet) -> None:
        self.stored(invocation)[entry.message["key"]] = entry.message["value"]

    def _clear_state(self, invocation: Invocation, index: int, entry: Packet) -> None:
        self.stored(invocation).pop(entry.message["key"], None)

    def _clear_all_state(self, invocation: Invocation, index: int, entry: Packet) -> None:
        self.stored(invocation).clear()

    def _promise(self, invocation: Invocation, entry: Packet) -> asyncio.Future[Result]:
        loop = asyncio.get_running_loop()
        name = invocation.service, invocation.key, entry.message["key"]
        return self.promises.setdefault(name, loop.create_future())

    def _get_promise(self, invocation: Invocation, index: int, entry: Packet) -> None:
        self._when(self._promise(invocation, entry), invocation, index)

    def _peek_promise(self, invocation: Invocation, index: int, entry: Packet) -> None:
        promise = self._promise(invocation, entry)
        invocation.complete(index, promise.result() if promise.done() else EMPTY)

    def _complete_promise(self, invocation: Invocation, index: int, entry: Packet) -> None:
        promise, message = self._promise(invocation, entry), entry.message
        if promise.done():
            invocation.complete(index, ("failure", {"code": 409, "message": "completed before"}))
            return
        failure = message.get("completion_failure")
        result = ("failure", failure) if failure else ("value", message["completion_value"])
        promise.set_result(result)
        invocation.complete(index, EMPTY)

    def _sleep(self, invocation: Invocation, index: int, entry: Packet) -> None:
        asyncio.get_running_loop().call_soon(invocation.complete, index, EMPTY)

    def _child(self, entry: Packet, parent: Invocation, index: int) -> Invocation:
        message = entry.message
        child = self._submit(
            message["service_name"],
            message["handler_name"],
            message["parameter"],
            key=message["key"],
            headers=message["headers"],
            idempotency_key=message.get("idempotency_key"),
        )
        parent.children[index] = child
        return child

    def _call(self, invocation: Invocation, index: int, entry: Packet) -> None:
        self._when(self._child(entry, invocation, index).output, invocation, index)

    def _one_way_call(self, invocation: Invocation, index: int, entry: Packet) -> None:
        self._child(entry, invocation, index)

    def _complete_awakeable(self, invocation: Invocation, index: int, entry: Packet) -> None:
        owner, at = parse_awakeable(entry.message["id"])
        result = result_of(entry)
        assert result is not None
        self.invocations[owner].complete(at, result)

    def _target(self, invocation: Invocation, message: dict[str, Any]) -> Invocation | None:
        if "call_entry_index" in message:
            return invocation.children.get(message["call_entry_index"])
        if "invocation_id" in message:
            named = {each.name: each for each in self.invocations.values()}
            return named.get(message["invocation_id"])
        if "workflow_target" in message:
            target = message["workflow_target"]
            return self.by_name.get((target["workflow_name"], target["workflow_key"]))
        target = message["idempotent_request_target"]
        key = target.get("service_key", "")
        name = target["service_name"], key, target["handler_name"], target["idempotency_key"]
        return self.by_name.get(name)

    def _cancel_invocation(self, invocation: Invocation, index: int, entry: Packet) -> None:
        if target := self._target(invocation, entry.message):
            self.cancel(target)

    def cancel(self, target: Invocation) -> None:
        """Have every entry fail that it waits for, now or later."""
        target.canceled = True
        self._fail_open(target)
        for child in target.children.values():
            self.cancel(child)

    def _fail_open(self, target: Invocation) -> None:
        for index, entry in enumerate(target.journal):
            shape = shapes().get(entry.name)
            if shape and shape.completable and not entry.completed:
                target.complete(index, ("failure", CANCELED))

    def _get_call_invocation_id(self, invocation: Invocation, index: int, entry: Packet) -> None:
        child = invocation.children[entry.message["call_entry_index"]]
        invocation.complete(index, ("value", child.name.encode()))

    def _attach_invocation(self, invocation: Invocation, index: int, entry: Packet) -> None:
        target = self._target(invocation, entry.message)
        if target is None:
            invocation.complete(index, ("failure", GONE))
        else:
            self._when(target.output, invocation, index)

    def _get_invocation_output(self, invocation: Invocation, index: int, entry: Packet) -> None:
        target = self._target(invocation, entry.message)
        if target is None:
            invocation.complete(index, ("failure", GONE))
        else:
            invocation.complete(index, target.output.result() if target.output.done() else EMPTY)

    @staticmethod
    def _when(future: asyncio.Future[Result], invocation: Invocation, index: int) -> None:
        if future.done():
            invocation.complete(index, future.result())
        else:
            future.add_done_callback(lambda done: invocation.complete(index, done.result()))
