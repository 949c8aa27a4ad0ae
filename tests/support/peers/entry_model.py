"""The driver's own model of what entries do: state, promises, timers, calls and awakeables."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from support.peers.fault_plans import Invocation, addressed
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
        self.slept: list[int] = []
        """The wake-up times that were asked for, in milliseconds since 1970."""

    def perform(self, of: Invocation, index: int, entry: Packet) -> None:
        """Do what a stored entry asks for."""
        name = _WORD.sub("_", entry.name.removesuffix("EntryMessage")).lower()
        action = getattr(self, f"_{name}", None)
        if action is not None:
            action(of, index, entry)
        if of.canceled:
            self._fail_open(of)

    def stored(self, of: Invocation) -> dict[bytes, bytes]:
        return self.state[of.service, of.key]

    def _check_or_complete(self, of: Invocation, index: int, entry: Packet, result: Result) -> None:
        """An eager result must be the one that the model has, if nobody else writes."""
        if entry.completed and of.alone:
            given = result_of(entry)
            assert given == result, f"entry {index} says {given} of the state, which has {result}"
        of.complete(index, result)

    def _get_state(self, of: Invocation, index: int, entry: Packet) -> None:
        value = self.stored(of).get(entry.message["key"])
        result = EMPTY if value is None else ("value", value)
        self._check_or_complete(of, index, entry, result)

    def _get_state_keys(self, of: Invocation, index: int, entry: Packet) -> None:
        kind = shapes()["StateKeys"]
        keys = sorted(self.stored(of))
        if entry.completed and of.alone:
            assert sorted(entry.message["value"]["keys"]) == keys
        of.complete(index, ("value", write(kind, {"keys": keys})))

    def _set_state(self, of: Invocation, index: int, entry: Packet) -> None:
        self.stored(of)[entry.message["key"]] = entry.message["value"]

    def _clear_state(self, of: Invocation, index: int, entry: Packet) -> None:
        self.stored(of).pop(entry.message["key"], None)

    def _clear_all_state(self, of: Invocation, index: int, entry: Packet) -> None:
        self.stored(of).clear()

    def _promise(self, of: Invocation, entry: Packet) -> asyncio.Future[Result]:
        loop = asyncio.get_running_loop()
        name = of.service, of.key, entry.message["key"]
        return self.promises.setdefault(name, loop.create_future())

    def _get_promise(self, of: Invocation, index: int, entry: Packet) -> None:
        self._when(self._promise(of, entry), of, index)

    def _peek_promise(self, of: Invocation, index: int, entry: Packet) -> None:
        promise = self._promise(of, entry)
        of.complete(index, promise.result() if promise.done() else EMPTY)

    def _complete_promise(self, of: Invocation, index: int, entry: Packet) -> None:
        promise, told = self._promise(of, entry), entry.message
        if promise.done():
            of.complete(index, ("failure", {"code": 409, "message": "completed before"}))
            return
        failure = told.get("completion_failure")
        promise.set_result(("failure", failure) if failure else ("value", told["completion_value"]))
        of.complete(index, EMPTY)

    def _sleep(self, of: Invocation, index: int, entry: Packet) -> None:
        self.slept.append(entry.message["wake_up_time"])
        asyncio.get_running_loop().call_soon(of.complete, index, EMPTY)

    def _child(self, entry: Packet, parent: Invocation, index: int) -> Invocation:
        told = entry.message
        child = self._submit(
            told["service_name"],
            told["handler_name"],
            told["parameter"],
            key=told["key"],
            headers=told["headers"],
            idempotency_key=told.get("idempotency_key"),
        )
        parent.children[index] = child
        return child

    def _call(self, of: Invocation, index: int, entry: Packet) -> None:
        self._when(self._child(entry, of, index).output, of, index)

    def _one_way_call(self, of: Invocation, index: int, entry: Packet) -> None:
        self._child(entry, of, index)

    def _complete_awakeable(self, of: Invocation, index: int, entry: Packet) -> None:
        owner, at = addressed(entry.message["id"])
        result = result_of(entry)
        assert result is not None
        self.invocations[owner].complete(at, result)

    def _target(self, of: Invocation, told: dict[str, Any]) -> Invocation | None:
        if "call_entry_index" in told:
            return of.children.get(told["call_entry_index"])
        if "invocation_id" in told:
            every = self.invocations.values()
            return next((each for each in every if each.name == told["invocation_id"]), None)
        if "workflow_target" in told:
            asked = told["workflow_target"]
            return self.by_name.get((asked["workflow_name"], asked["workflow_key"]))
        asked = told["idempotent_request_target"]
        key = asked.get("service_key", "")
        return self.by_name.get(
            (asked["service_name"], key, asked["handler_name"], asked["idempotency_key"])
        )

    def _cancel_invocation(self, of: Invocation, index: int, entry: Packet) -> None:
        if target := self._target(of, entry.message):
            self.cancel(target)

    def cancel(self, target: Invocation) -> None:
        """Let every entry that it waits for, or will, fail."""
        target.canceled = True
        self._fail_open(target)
        for child in target.children.values():
            self.cancel(child)

    def _fail_open(self, target: Invocation) -> None:
        for index, entry in enumerate(target.journal):
            shape = shapes().get(entry.name)
            if shape and shape.completable and not entry.completed:
                target.complete(index, ("failure", CANCELED))

    def _get_call_invocation_id(self, of: Invocation, index: int, entry: Packet) -> None:
        of.complete(index, ("value", of.children[entry.message["call_entry_index"]].name.encode()))

    def _attach_invocation(self, of: Invocation, index: int, entry: Packet) -> None:
        target = self._target(of, entry.message)
        if target is None:
            of.complete(index, ("failure", GONE))
        else:
            self._when(target.output, of, index)

    def _get_invocation_output(self, of: Invocation, index: int, entry: Packet) -> None:
        target = self._target(of, entry.message)
        if target is None:
            of.complete(index, ("failure", GONE))
        else:
            of.complete(index, target.output.result() if target.output.done() else EMPTY)

    @staticmethod
    def _when(future: asyncio.Future[Result], of: Invocation, index: int) -> None:
        if future.done():
            of.complete(index, future.result())
        else:
            future.add_done_callback(lambda done: of.complete(index, done.result()))
