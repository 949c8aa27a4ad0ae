"""How the servers of this project hold the connections of their clients."""

from __future__ import annotations

from typing import Any

MOST_HEAD = 64 * 1024
"""Bytes of a request's line and headers, unless a server has other bounds."""
KEEP_SECONDS = 30
"""For which an idle connection is kept: clients give theirs up earlier, httpx after 5 s. One that
both give up at the same time loses a request."""


def options(most_head: int = MOST_HEAD) -> dict[str, Any]:
    """What `uvicorn.Config` takes, beside what is a server's own; a head has `most_head` bytes."""
    return {
        # uvicorn's faster parser would keep any number of headers.
        "http": "h11",
        "h11_max_incomplete_event_size": most_head,
        "timeout_keep_alive": KEEP_SECONDS,
        "access_log": False,
        "log_level": "warning",
        "server_header": False,
    }
