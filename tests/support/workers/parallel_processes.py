"""Many processes that do the same work at the same moment."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

PROCESSES = 8
PATIENCE = 120


def at_once(
    work: Callable[..., Any], *arguments: Any, preload: Sequence[str], processes: int = PROCESSES
) -> list[Any]:
    """Run `work(wait, number, *arguments)` in many processes; return each result, by number.

    `wait()` returns once all processes have called it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", *preload])
    gate, answers = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(target=_report, args=(work, number, arguments, gate, answers))
        for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    with closing(answers):
        results = dict(answers.get(timeout=PATIENCE) for _ in workers)
    for worker in workers:
        worker.join(PATIENCE)
    errors = {number: error for number, (_, error) in results.items() if error}
    assert not errors, errors
    return [results[number][0] for number in range(processes)]


def _report(work, number, arguments, gate, answers) -> None:
    result, error = None, None
    try:
        result = work(lambda: gate.wait(PATIENCE), number, *arguments)
    except BaseException as raised:
        error = repr(raised)
        gate.abort()
        raise
    finally:
        answers.put((number, (result, error)))
