"""A runtime in a process of its own, which kills itself at a transaction that it is told.

    python mortalruntime.py FOLDER before|after OPERATION NUMBER

`OPERATION` is a class of operations.py; the transaction is the NUMBERth that has one of them.
`before`: nothing of it is stored; `after`: it is stored, and nobody was told.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from running import AT_ONCE, store_at

from iscp_dagster.invocations.runtime.runtime import Runtime
from iscp_dagster.invocations.runtime.settings import Settings


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


def die():
    os.kill(os.getpid(), signal.SIGKILL)


async def main(folder, moment, operation, number):
    store = store_at(folder)
    store.run = Mortal(store.run, moment, operation, int(number))
    async with Runtime(store, Settings(policy=AT_ONCE, poll=0.05, beat=0.05, silent=0.3)):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
