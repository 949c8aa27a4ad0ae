"""Whether Spark's cores are free."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any


def meet_on_all_cores(spark: Any, folder: Path, cores: int, seconds: float = 60.0) -> None:
    """Returns once as many tasks run side by side as there are cores; fails after `seconds`."""
    folder.mkdir()

    # Within a function, so that it goes to Spark's workers by value.
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
