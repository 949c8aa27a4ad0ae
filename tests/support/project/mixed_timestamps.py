"""What the type checker must refuse: each ignore here would be an error if nothing needed it."""

from iscp_dagster.events.timestamps import SourceTimestamp


def show(_row: dict[str, object], _nanos: int) -> None: ...


def mix(at: SourceTimestamp) -> None:
    """Compare a timestamp with a number, add one to it, and use it as one."""
    assert at < 5  # type: ignore[operator]
    assert at + 1  # type: ignore[operator]
    show({}, at)  # type: ignore[arg-type]
