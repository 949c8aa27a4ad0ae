"""Whether Spark's cores are free."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any


def meet_on_all_cores(spark: Any, folder: Path, cores: int, seconds: float = 60.0) -> None:
    """Wait until as many tasks run at once as there are cores; fail after `seconds`."""
    folder.mkdir()

    # Defined within a function, so that it is pickled by value for Spark's workers.
    def meet(batches, place=str(folder), all_=cores):
        deadline = time.monotonic() + seconds
        for batch in batches:
            Path(place, str(batch["id"][0])).touch()
            while len(list(Path(place).iterdir())) < all_:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"only {len(list(Path(place).iterdir()))} cores are free")
                threading.Event().wait(0.01)
            yield batch

    assert len(spark.range(0, cores, 1, cores).mapInArrow(meet, "id bigint").collect()) == cores
