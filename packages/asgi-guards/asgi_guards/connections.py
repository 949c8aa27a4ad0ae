"""How the servers of this project bound their clients' connections."""

from __future__ import annotations

from typing import Any

MOST_HEAD = 64 * 1024
"""Bytes of a request's line and headers, unless a server has other bounds."""
KEEP_ALIVE_SECONDS = 30
"""How long an idle connection is kept: clients close theirs earlier, httpx after 5 s. If both close
one at the same time, a request is lost."""


def make_uvicorn_options(most_head: int = MOST_HEAD) -> dict[str, Any]:
    """The options of `uvicorn.Config` for all servers; a head has at most `most_head` bytes."""
    return {
        # uvicorn's faster parser does not bound headers.
        "http": "h11",
        "h11_max_incomplete_event_size": most_head,
        "timeout_keep_alive": KEEP_ALIVE_SECONDS,
        "access_log": False,
        "log_level": "warning",
        "server_header": False,
    }
