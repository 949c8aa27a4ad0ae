"""The one tree of errors. A message names the culprit, its value and the remedy."""


class DurableError(Exception):
    """The root of every error that this package raises.

    `code` names the kind, for callers; HTTP answers have a status instead. Below 10,000 another
    attempt may succeed.
    """

    code = 10_000


class ConfigError(DurableError):
    """A setting, an address, an id or a declaration is wrong; nothing was started or written."""

    code = 10_100


class UnavailableError(DurableError):
    """The database, the runtime or a service does not answer; try again."""

    code = 1_100


class WaitError(DurableError):
    """An invocation has not ended in time; waiting again may help."""

    code = 1_600
