"""A consumer at work in its own thread, fed by a shared scan."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa

from iscp_dagster.model.consumers.protocol import Consumer
from iscp_dagster.model.errors import IscpError
from iscp_dagster.sync.executors.retriever import ConsumerError, Retriever, Share

_LOOK_SECONDS = 0.2
GIVE_UP_SECONDS = 5.0
"""How long an interrupted run waits for a consumer that works on and asks for no rows."""


class Worker:
    """A thread that runs one consumer; what it raised is in `failure`."""

    def __init__(self, make: Callable[[], Consumer], retriever: Retriever) -> None:
        self.retriever = retriever
        self.failure: IscpError | None = None
        self.made = False
        """Whether the consumer could be made."""
        self._make = make
        self._thread = threading.Thread(target=self._run, name=str(retriever.job), daemon=True)
        self._thread.start()

    @property
    def share(self) -> Share:
        return self.retriever.share

    @property
    def going(self) -> bool:
        """Whether it takes more rows."""
        return self._thread.is_alive()

    def put(self, rows: pa.Table) -> None:
        """Hand rows on as soon as there is room, or never if the consumer is gone."""
        self._offer(rows)

    def end(self) -> None:
        """Say that there are no more rows and wait for the consumer to return."""
        self._offer(None)
        self._thread.join()

    def abort(self, error: BaseException) -> None:
        """Say that the scan failed and wait for the consumer to give up.

        An interrupted run waits GIVE_UP_SECONDS at most: its process ends, and the consumer with
        it.
        """
        failed = isinstance(error, Exception)
        self.retriever.broken = True
        # The error must not wait behind rows that nobody wants any more.
        with suppress(queue.Empty):
            while True:
                self.retriever.coming.get_nowait()
        gone = ConsumerError(f"The run of {self.retriever.job} was interrupted.")
        self._offer(error if failed else gone)
        self._thread.join(None if failed else GIVE_UP_SECONDS)

    def _offer(self, item: pa.Table | BaseException | None) -> None:
        while self._thread.is_alive():
            try:
                return self.retriever.coming.put(item, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue
        return None

    def _run(self) -> None:
        try:
            consumer = self._make()
            self.made = True
            consumer.consume(self.retriever)
        except IscpError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - whatever a user's code raises is its result
            reason = f"{type(error).__name__}: {error}"
            self.failure = ConsumerError(f"Consumer of {self.retriever.job} failed: {reason}")
        else:
            if not self.retriever.drained:
                self.failure = ConsumerError(
                    f"Consumer of {self.retriever.job} returned before it had read everything; "
                    "call next() until it reports the end."
                )
