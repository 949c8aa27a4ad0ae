"""Which tests one worker of pytest-xdist takes, and which come first.

Files whose tests share the session's Spark are one unit: each worker that met them would start and
warm up a Spark of its own, 40 s of processor time. They are two units, since one would be the
longest way through the suite; those that mostly wait run beside them. So are the files that share
a whole stack, `ground`.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

LANES = {
    "at work": (
        "acceptance/deployments/test_faults",
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
                "sessions",
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
    "acceptance/deployments/test_kills",
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


def rank(nodeid: str) -> int:
    """Lanes come first, then the files that take longest."""
    lane = scope(nodeid)
    if lane in LANES:
        return list(LANES).index(lane)
    place = lane.removeprefix("tests/")
    found = (at for at, start in enumerate(FIRST) if place.startswith(start))
    return len(LANES) + next(found, len(FIRST))


class Lanes(LoadScopeScheduling):
    """A worker has a lane, or a file, to itself."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)
