"""Spark work is interrupted when its run is canceled or has lost its jobs."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from iscp_dagster.model.errors import FenceError, IscpError

LOOK_SECONDS = 2.0
"""How often a run asks the ISCP log whether it still holds its jobs."""


@contextmanager
def interrupt_when_lost(
    spark: Any, holds_jobs: Callable[[], bool], every: float = LOOK_SECONDS
) -> Iterator[None]:
    """Interrupt on the server the Spark work begun in this block, once nobody needs it.

    That is when the thread is interrupted, as Dagster does to end a run, or when `holds_jobs`
    returns false, which raises FenceError. An ISCP log that does not answer changes nothing.
    """
    tag = f"iscp-{secrets.token_hex(8)}"
    finished, lost = threading.Event(), threading.Event()

    def watch() -> None:
        while not finished.wait(every):
            with suppress(IscpError):
                if not holds_jobs():
                    lost.set()
                    spark.interruptTag(tag)
                    return

    watcher = threading.Thread(target=watch, name="guard", daemon=True)
    spark.addTag(tag)
    watcher.start()
    try:
        yield
    except BaseException as error:
        if lost.is_set():
            raise FenceError(
                "The jobs of this run were taken or canceled by another writer; its Spark work "
                "was interrupted, and it publishes nothing more."
            ) from error
        if not isinstance(error, Exception):
            spark.interruptTag(tag)
        raise
    finally:
        finished.set()
        watcher.join()
        spark.removeTag(tag)
