"""A runtime in its own process, which kills itself at the transaction that its arguments name.

    python -m runtime_support.runtimes.killable_runtime FOLDER before|after OPERATION NUMBER AHEAD

It is the NUMBERth transaction with an OPERATION, a class of operations.py. `before`: it is not
stored; `after`: it is stored, and nobody knows. The clock is AHEAD seconds ahead.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from durable_invocations.runtime.retries import RetryPolicy
from durable_invocations.runtime.runtime import Runtime
from durable_invocations.runtime.settings import RuntimeSettings
from durable_invocations.runtime.timers import SteadyClock
from runtime_support.runtimes.sqlite_runtime import store_at

PATIENT = RetryPolicy(initial=0.02, factor=1, cap=0.02, attempts=None)


class Mortal:
    """A store's `run` that ends the process."""

    def __init__(self, run, moment, operation, number):
        self._run = run
        self._moment, self._operation, self._left = moment, operation, number

    def __call__(self, operations):
        self._left -= any(type(each).__name__ == self._operation for each in operations)
        if self._left == 0 and self._moment == "before":
            die()
        outcome = self._run(operations)
        if self._left == 0:
            die()
        return outcome


def clock_ahead(seconds):
    return SteadyClock(wall=lambda: time.time() + seconds)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


async def main(folder, moment, operation, number, ahead):
    clock = clock_ahead(float(ahead))
    store = store_at(folder, clock)
    store.run = Mortal(store.run, moment, operation, int(number))
    settings = RuntimeSettings(policy=PATIENT, poll=0.05, beat=0.05, silent=0.3)
    async with Runtime(store, settings, clock=clock):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
