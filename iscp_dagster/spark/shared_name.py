"""The name of the Spark session that all processes with the same code share."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_NAMESPACE = uuid.UUID("6f0f4d3e-6a5c-4b60-9a54-0a1b6c1f7c11")
PACKAGE = Path(__file__).parents[1]


def compute_session_name(settings: Mapping[str, str], generation: int) -> str:
    """A UUID, the same for the same code, settings and generation.

    Workers keep what they have imported, so changed code gets another session, with new workers.
    """
    parts = [hash_sources(PACKAGE), sorted(settings.items()), generation]
    return str(uuid.uuid5(_NAMESPACE, json.dumps(parts)))


@cache
def hash_sources(folder: Path) -> str:
    """A digest of the files' paths, times and sizes: identifies the code without reading it."""
    files = sorted(folder.rglob("*.py"))
    facts = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    return str(uuid.uuid5(_NAMESPACE, json.dumps(facts)))
