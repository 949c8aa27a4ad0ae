"""How the servers of this project hold the connections of their clients."""

from __future__ import annotations

from typing import Any

from asgi_guards.heads import MOST_HEAD, bounded

KEEP_SECONDS = 30
"""For which an idle connection is kept: clients give theirs up earlier, httpx after 5 s. One that
both give up at the same time loses a request."""


def options(most_head: int = MOST_HEAD) -> dict[str, Any]:
    """What `uvicorn.Config` takes, beside what is a server's own; a head has `most_head` bytes."""
    return {
        "http": bounded(most_head),
        "h11_max_incomplete_event_size": most_head,
        "timeout_keep_alive": KEEP_SECONDS,
        "access_log": False,
        "log_level": "warning",
        "server_header": False,
    }
