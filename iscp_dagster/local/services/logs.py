"""The services' log files: appended to, set aside when large, quoted in errors."""

from __future__ import annotations

from pathlib import Path

MAX_BYTES = 10_000_000
_TAIL_BYTES = 16_384


def rotate(log: Path, max_bytes: int = MAX_BYTES) -> None:
    """Move a log of more than `max_bytes` to `<name>.1`, replacing an earlier one."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > max_bytes:
        log.replace(log.with_name(log.name + ".1"))


def size(log: Path) -> int:
    """The log's length in bytes; 0 when there is none."""
    return log.stat().st_size if log.exists() else 0


def read_tail(log: Path, lines: int = 20, since: int = 0) -> str:
    """The last lines of a log, at most those after the byte offset `since`."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(since, size(log) - _TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    return "\n".join(text.strip().splitlines()[-lines:])
