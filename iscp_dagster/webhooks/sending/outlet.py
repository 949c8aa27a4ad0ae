"""What a sender has in hand of one endpoint whose lease it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from iscp_dagster.model.clock import Clock
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.webhooks.answers import Answer, Change, Outcome, Rules, Verdict, outcome
from iscp_dagster.webhooks.claims import BatchId, Message, Work, halves
from iscp_dagster.webhooks.recording import EndpointState, Result
from iscp_dagster.webhooks.sending.posting import Poster

AHEAD = 100
"""How many pieces of work are claimed ahead, so that each claim serves many attempts."""
_GOES_ON = (Verdict.DELIVERED, Verdict.DEAD)

Random = Callable[[], float]
"""Gives a number from 0 up to 1."""


@dataclass
class Outlet:
    """An endpoint's attempts under way, and what of them is not recorded yet.

    `heard` is called when there is something to record.
    """

    endpoint: Endpoint
    poster: Poster
    state: EndpointState
    clock: Clock
    random: Random
    batch_id: BatchId
    heard: Callable[[], None]
    busy: set[str] = field(default_factory=set)
    """Lanes that are under way, or whose end is not recorded."""
    stopping: bool = False
    _results: list[Result] = field(default_factory=list)
    _ended: list[Work] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.endpoint.concurrency)
        self._rules = rules(self.endpoint)

    @property
    def batched(self) -> bool:
        return self.endpoint.batch > 1

    @property
    def room(self) -> int:
        """How many more pieces of work to claim; 0 while enough is at hand."""
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

    def begin(self, work: Sequence[Work]) -> None:
        """Send these messages, as many at a time as the endpoint takes."""
        for each in work:
            self.busy |= each.lanes
            task = asyncio.get_running_loop().create_task(self._send(each))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def taken(self) -> tuple[EndpointState, list[Result], list[Work]]:
        """What is to be recorded now, and the work that is over then."""
        results, ended = self._results, self._ended
        self._results, self._ended = [], []
        return self.state, results, ended

    def put_back(self, results: list[Result], ended: list[Work]) -> None:
        """Keep what could not be recorded."""
        self._results, self._ended = results + self._results, ended + self._ended

    def free(self, ended: Sequence[Work]) -> None:
        """The ends of this work are recorded."""
        self.busy -= frozenset().union(*(each.lanes for each in ended))

    async def finish(self) -> None:
        """Begin no attempt any more, and wait for those under way."""
        self.stopping = True
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.poster.aclose()

    async def drop(self) -> None:
        """End the attempts under way: another sender may have the endpoint."""
        for each in self._tasks:
            each.cancel()
        await self.finish()

    @property
    def _open(self) -> bool:
        return self.state.active and not self.stopping

    async def _send(self, work: Work) -> None:
        for message in work.messages:
            async with self._slots:
                verdict = await self._attempt(message) if self._open else None
            if verdict not in _GOES_ON:
                break
        self._ended.append(work)
        self.heard()

    async def _attempt(self, message: Message) -> Verdict:
        at, loop = self.clock(), asyncio.get_running_loop()
        started = loop.time()
        answer = await self.poster.post(message.id, message.body)
        follows = self._follows(message, answer)
        split = follows.verdict is Verdict.SPLIT
        self._results.append(
            Result(
                message=message,
                answer=answer,
                outcome=follows,
                at=at,
                seconds=loop.time() - started,
                halves=halves(message, self.batch_id) if split else (),
            )
        )
        self.heard()
        return follows.verdict

    def _follows(self, message: Message, answer: Answer) -> Outcome:
        now = self.clock()
        self.state = replace(self.state, health=self.state.health.after(answer, now))
        follows = outcome(
            answer,
            attempt=message.attempts + 1,
            first_failure=message.failed_at,
            health=self.state.health,
            now=now,
            rules=self._rules,
            random=self.random(),
            events=len(message.events),
        )
        change = follows.change
        if change is Change.DISABLE or (change and self.state.active):
            self.state = replace(
                self.state, state=change.value, reason=follows.reason, changed_at=now
            )
        return follows


def rules(endpoint: Endpoint) -> Rules:
    """The rules of answers that an endpoint declares."""
    return Rules(
        delays=tuple(endpoint.retries),
        jitter=endpoint.jitter,
        longest=endpoint.longest_wait,
        refusals=endpoint.refusals,
        failing=timedelta(days=endpoint.failing_days),
    )
