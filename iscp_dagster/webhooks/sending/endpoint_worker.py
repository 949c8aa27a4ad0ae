"""A sender's work for one endpoint whose lease it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from iscp_dagster.model.clock import Clock
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.webhooks.answers import (
    AttemptOutcome,
    DeliveryRules,
    EndpointAnswer,
    EndpointChange,
    MessageVerdict,
    decide_outcome,
)
from iscp_dagster.webhooks.due_work import BatchIdMaker, SenderWork, WebhookMessage, split_batch
from iscp_dagster.webhooks.recording import AttemptResult, EndpointState
from iscp_dagster.webhooks.sending.posting import Poster

AHEAD = 100
"""How many pieces of work are taken ahead, so that each claim serves many attempts."""
_CONTINUES = (MessageVerdict.DELIVERED, MessageVerdict.DEAD)

Random = Callable[[], float]
"""Gives a number from 0 up to 1."""


@dataclass
class EndpointWorker:
    """An endpoint's attempts under way, and their results that are not recorded yet.

    `on_result` is called when there is something to record.
    """

    endpoint: Endpoint
    poster: Poster
    state: EndpointState
    clock: Clock
    random: Random
    make_batch_id: BatchIdMaker
    on_result: Callable[[], None]
    busy: set[str] = field(default_factory=set)
    """Lanes that are under way, or whose end is not recorded."""
    stopping: bool = False
    _results: list[AttemptResult] = field(default_factory=list)
    _ended: list[SenderWork] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.endpoint.concurrency)
        self._rules = build_rules(self.endpoint)

    @property
    def batched(self) -> bool:
        return self.endpoint.batch > 1

    @property
    def room(self) -> int:
        """How many more pieces of work to claim; 0 while there is enough."""
        if not self._open:
            return 0
        most = 2 * self.endpoint.concurrency + (0 if self.batched else AHEAD)
        return most - len(self._tasks) if len(self._tasks) <= most // 2 else 0

    @property
    def unrecorded(self) -> bool:
        return bool(self._results or self._ended)

    def adopt(self, state: EndpointState) -> None:
        """Take over what a person changed meanwhile."""
        if state.seq != self.state.seq:
            self.state = state

    def begin(self, work: Sequence[SenderWork]) -> None:
        """Send these messages, as many at a time as the endpoint takes."""
        for piece in work:
            self.busy |= piece.lanes
            task = asyncio.get_running_loop().create_task(self._send(piece))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def take_results(self) -> tuple[EndpointState, list[AttemptResult], list[SenderWork]]:
        """The results to record now, and the work that ends with them."""
        results, ended_work = self._results, self._ended
        self._results, self._ended = [], []
        return self.state, results, ended_work

    def put_back(self, results: list[AttemptResult], ended_work: list[SenderWork]) -> None:
        """Keep what could not be recorded."""
        self._results, self._ended = results + self._results, ended_work + self._ended

    def free(self, ended_work: Sequence[SenderWork]) -> None:
        """Free the lanes of this work, whose end is recorded."""
        self.busy -= frozenset().union(*(piece.lanes for piece in ended_work))

    async def finish(self) -> None:
        """Begin no more attempts, and wait for those under way."""
        self.stopping = True
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.poster.aclose()

    async def drop(self) -> None:
        """End the attempts under way: another sender may have the endpoint."""
        for task in self._tasks:
            task.cancel()
        await self.finish()

    @property
    def _open(self) -> bool:
        return self.state.active and not self.stopping

    async def _send(self, work: SenderWork) -> None:
        for message in work.messages:
            async with self._slots:
                verdict = await self._attempt_message(message) if self._open else None
            if verdict not in _CONTINUES:
                break
        self._ended.append(work)
        self.on_result()

    async def _attempt_message(self, message: WebhookMessage) -> MessageVerdict:
        at, loop = self.clock(), asyncio.get_running_loop()
        started = loop.time()
        answer = await self.poster.post(message.id, message.body)
        outcome = self._apply_answer(message, answer)
        split = outcome.verdict is MessageVerdict.SPLIT
        self._results.append(
            AttemptResult(
                message=message,
                answer=answer,
                outcome=outcome,
                at=at,
                seconds=loop.time() - started,
                halves=split_batch(message, self.make_batch_id) if split else (),
            )
        )
        self.on_result()
        return outcome.verdict

    def _apply_answer(self, message: WebhookMessage, answer: EndpointAnswer) -> AttemptOutcome:
        now = self.clock()
        self.state = replace(self.state, health=self.state.health.count_answer(answer, now))
        outcome = decide_outcome(
            answer,
            attempt=message.attempts + 1,
            first_failure=message.failed_at,
            health=self.state.health,
            now=now,
            rules=self._rules,
            random=self.random(),
            events=len(message.events),
        )
        change = outcome.change
        if change is EndpointChange.DISABLE or (change and self.state.active):
            self.state = replace(
                self.state, state=change.value, reason=outcome.reason, changed_at=now
            )
        return outcome


def build_rules(endpoint: Endpoint) -> DeliveryRules:
    """The rules of answers that an endpoint declares."""
    return DeliveryRules(
        delays=tuple(endpoint.retries),
        jitter=endpoint.jitter,
        longest_wait=endpoint.longest_wait,
        pausing_refusals=endpoint.refusals,
        disabling_period=timedelta(days=endpoint.failing_days),
    )
