"""Which tests one worker of pytest-xdist takes, and in which order.

Files that share a whole stack are one unit. The files that use the workers' common Spark
are two units that come early, so that they use it while warm and it ends before the last tests.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from xdist.scheduler import LoadScopeScheduling

LONGEST = "at work"
LANES = {
    LONGEST: (
        "acceptance/deployments/test_faults",
        "acceptance/deployments/test_kills",
        "acceptance/deployments/test_events",
        # Last, since its last test ends the stack.
        "acceptance/deployments/test_scheduling",
    ),
    "reading": (
        "acceptance/iterations/test_iterations",
        *(
            f"acceptance/spark/test_{name}"
            for name in (
                "bench",
                "deterministic_chunks",
                "every_type",
                "filescan_of_tables",
                "lake_reader",
                "near_spark",
                "odd_names",
            )
        ),
        "acceptance/histories/",
        "acceptance/location/",
    ),
    "around": ("acceptance/iterations/", "acceptance/events/"),
}
BEHIND = 5
"""The niceness of the others."""
FIRST = (
    "acceptance/spark/test_cluster",
    "acceptance/",
    # Early: at the end one worker would be busy with it alone.
    "unit/project/test_lint",
    "contract/runs/",
    "contract/",
    "packages/",
)


def scope(nodeid: str) -> str:
    """Return the unit of a test: its lane, else its file."""
    file = nodeid.partition("::")[0]
    place = file.removeprefix("tests/")
    return next((lane for lane, files in LANES.items() if place.startswith(files)), file)


def give_way(nodeid: str) -> None:
    """Leave the processors to the worker that has the longest lane, unless it is this one.

    Its tests wait for one another, so it would end last; the others fill what it leaves.
    """
    if "PYTEST_XDIST_WORKER" in os.environ and scope(nodeid) != LONGEST and not os.nice(0):
        os.nice(BEHIND)


def rank(nodeid: str) -> tuple[int, int, str]:
    """Return the place of a test: lanes first, each in its order, then the longest files."""
    file = nodeid.partition("::")[0].removeprefix("tests/")
    for number, files in enumerate(LANES.values()):
        if file.startswith(files):
            return number, _first(file, files), file
    return len(LANES), _first(file, FIRST), file


def own_part_first(files: Sequence[str]) -> list[str]:
    """Return the files, beginning with those whose asserts this worker compiles for all workers.

    Each worker takes six seconds for all of them; `rank` puts the tests in one order.
    """
    worker = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    first = len(files) * worker // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    return [*files[first:], *files[:first]]


def _first(file: str, starts: Sequence[str]) -> int:
    return next((at for at, start in enumerate(starts) if file.startswith(start)), len(starts))


class Lanes(LoadScopeScheduling):
    """Gives each lane, or file, to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)
