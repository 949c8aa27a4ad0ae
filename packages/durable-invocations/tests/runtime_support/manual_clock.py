"""A clock that only a test moves."""

from datetime import datetime, timedelta, timezone

NOON = datetime(2025, 6, 18, 12, tzinfo=timezone.utc)


class Watch:
    """A clock that only a test moves, in seconds after noon."""

    def __init__(self, seconds=0.0):
        self.now = NOON + timedelta(seconds=seconds)

    def __call__(self):
        return self.now

    def move(self, seconds):
        self.now += timedelta(seconds=seconds)
