"""Why a subscription cannot begin or continue; clients distinguish errors by `extensions.code`."""

from __future__ import annotations

from collections.abc import Mapping

from iscp_dagster.model.errors import IscpError


class SubscriptionError(IscpError):
    """A subscription ends with an error; `extensions` goes to the client beside the message."""

    code = 10_860
    name = "SUBSCRIPTION_FAILED"

    def __init__(self, message: str, **extensions: str) -> None:
        super().__init__(message)
        self.extensions: Mapping[str, str] = {"code": self.name, **extensions}


class PositionInvalidError(SubscriptionError):
    """A cursor is malformed, or belongs to another table or view."""

    code = 10_861
    name = "POSITION_INVALID"


class PositionExpiredError(SubscriptionError):
    """The changes after a cursor are not kept.

    A client starts again with `snapshot: true`; `oldest`, the earliest cursor still kept, is for
    one that accepts a gap.
    """

    code = 10_862
    name = "POSITION_EXPIRED"


class SubscriberTooSlowError(SubscriptionError):
    """A client takes messages more slowly than changes come; `position` is where to continue."""

    code = 1_830
    name = "SUBSCRIBER_TOO_SLOW"
