"""Which tests one worker of pytest-xdist takes, and which come first.

Files that share a whole stack, `ground`, are one unit. So are, twice, those with the Spark of all
workers: it is warm before it is idle, and gone before the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdist.scheduler import LoadScopeScheduling

LANES = {
    "at work": (
        "acceptance/deployments/test_faults",
        "acceptance/deployments/test_kills",
        "acceptance/deployments/test_sessions",
        # Its last test ends the stack.
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
    ),
    "around": (
        *(
            f"acceptance/deployments/test_{name}"
            for name in ("library", "production", "two_dagsters")
        ),
        "acceptance/iterations/",
    ),
}
FIRST = (
    "acceptance/deployments/test_quickstart",
    "acceptance/spark/test_cluster",
    "acceptance/",
    # Else a worker would be left with it while the others have nothing to do.
    "unit/project/test_lint",
    "contract/runs/",
    "contract/",
)


def scope(nodeid: str) -> str:
    """The unit of a test: its lane, else its file."""
    file = nodeid.partition("::")[0]
    place = file.removeprefix("tests/")
    return next((lane for lane, files in LANES.items() if place.startswith(files)), file)


def rank(nodeid: str) -> tuple[int, int]:
    """Lanes come first, each in its order, then the files that take longest."""
    file = nodeid.partition("::")[0].removeprefix("tests/")
    for number, files in enumerate(LANES.values()):
        if file.startswith(files):
            return number, _first(file, files)
    return len(LANES), _first(file, FIRST)


def _first(file: str, starts: Sequence[str]) -> int:
    return next((at for at, start in enumerate(starts) if file.startswith(start)), len(starts))


class Lanes(LoadScopeScheduling):
    """A worker has a lane, or a file, to itself."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)
