"""A consumer at work: a thread of its own, fed by the scan it shares."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa

from iscp_dagster.model.consumers import Consumer
from iscp_dagster.model.errors import IscpError
from iscp_dagster.sync.retriever import ConsumerError, Retriever, Share


class Worker:
    """A thread that runs one consumer; what it raised is in `failure`."""

    def __init__(self, make: Callable[[], Consumer], retriever: Retriever) -> None:
        self.retriever = retriever
        self.failure: IscpError | None = None
        self._make = make
        self._thread = threading.Thread(target=self._run, name=str(retriever.job), daemon=True)
        self._thread.start()

    @property
    def share(self) -> Share:
        return self.retriever.share

    @property
    def going(self) -> bool:
        """Whether it takes more."""
        return self._thread.is_alive()

    def put(self, rows: pa.Table) -> None:
        self.retriever.put(rows, self._thread.is_alive)

    def end(self) -> None:
        """Say that there is no more and wait for the consumer to return."""
        self.retriever.end(self._thread.is_alive)
        self._thread.join()

    def abort(self, error: BaseException) -> None:
        """Say that the scan failed and wait for the consumer to give up."""
        self.retriever.abort(error, self._thread.is_alive)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._make().consume(self.retriever)
        except IscpError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - whatever a user's code raises is its result
            reason = f"{type(error).__name__}: {error}"
            self.failure = ConsumerError(f"Consumer of {self.retriever.job} failed: {reason}")
        else:
            if not self.retriever.drained:
                self.failure = ConsumerError(
                    f"Consumer of {self.retriever.job} returned before there was no more to read; "
                    "call next() until it says so."
                )
