"""The outbox's tables, in the ISCP log's database: deliveries, attempts, endpoints."""

from __future__ import annotations

from enum import IntEnum

import sqlalchemy as sa

from iscp_dagster.joblog.sql.tables import METADATA, UtcTime

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


class DeliveryState(IntEnum):
    """The state of the delivery of an event to an endpoint."""

    NEXT = 0
    """Pending, and the next of its key."""
    BEHIND = 1
    """Pending, and waiting for an earlier event of its key."""
    DELIVERED = 2
    DEAD = 3
    """A dead letter: not sent unless a person has it sent again."""

    @property
    def label(self) -> str:
        return "pending" if self <= DeliveryState.BEHIND else self.name.lower()


def _make_partial_index(name: str, *columns: str, where: str) -> sa.Index:
    return sa.Index(name, *columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


ISCP_OUTBOX = sa.Table(
    "iscp_outbox",
    METADATA,
    sa.Column(
        "number",
        _NUMBER,
        primary_key=True,
        autoincrement=True,
        comment="order in which events were recorded",
    ),
    sa.Column("event_id", sa.Text, nullable=False),
    sa.Column("endpoint", sa.Text, nullable=False),
    sa.Column("lane", sa.Text, nullable=False, comment="digest of trigger, tenant and key"),
    sa.Column(
        "state",
        sa.SmallInteger,
        nullable=False,
        comment="DeliveryState: 0 next, 1 behind, 2 delivered, 3 dead",
    ),
    sa.Column("trigger_name", sa.Text, nullable=False),
    sa.Column("account_id", sa.Text, key="tenant", nullable=False, comment="tenant"),
    sa.Column("event_key", sa.Text, nullable=False, comment="tenant and key, as in event ids"),
    sa.Column("event_type", sa.Text, nullable=False, comment="MATCH or UNMATCH"),
    sa.Column(
        "source_nanos",
        sa.BigInteger,
        nullable=False,
        comment="the commit's timestamp, nanoseconds since 1970",
    ),
    sa.Column("source_version", sa.BigInteger, nullable=False),
    sa.Column("source_ordinal", sa.BigInteger, nullable=False),
    sa.Column("recorded", UtcTime, nullable=False),
    sa.Column("body", sa.Text, nullable=False, comment="JSON, as it is sent"),
    sa.Column("next_at", UtcTime, nullable=False, comment="not sent before this time"),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("failed_at", UtcTime, comment="when it first failed since it is pending"),
    sa.Column("ended_at", UtcTime, comment="when it was delivered or became a dead letter"),
    sa.Column("batch_id", sa.Text, comment="webhook-id of the batch that it is sent in"),
    sa.Index("iscp_outbox_by_event", "event_id", "endpoint", unique=True),
    _make_partial_index("iscp_outbox_due", "endpoint", "next_at", where="state = 0"),
    _make_partial_index("iscp_outbox_next", "endpoint", "lane", where="state = 0"),
    _make_partial_index("iscp_outbox_lanes", "endpoint", "lane", "number", where="state <= 1"),
    # Counts read nothing else.
    sa.Index("iscp_outbox_counts", "trigger_name", "endpoint", "state", "recorded"),
    _make_partial_index("iscp_outbox_ended", "ended_at", where="state >= 2"),
    _make_partial_index("iscp_outbox_batches", "batch_id", where="batch_id IS NOT NULL"),
    sa.Index("iscp_outbox_by_time", "trigger_name", "source_nanos"),
    # A pruned event's number must not be used again.
    sqlite_autoincrement=True,
)
"""One row for each event and endpoint."""

ISCP_ATTEMPTS = sa.Table(
    "iscp_attempts",
    METADATA,
    sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
    sa.Column("message_id", sa.Text, nullable=False, comment="webhook-id of the event or batch"),
    sa.Column("endpoint", sa.Text, nullable=False),
    sa.Column("at", UtcTime, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("events", sa.Integer, nullable=False, comment="how many events it carried"),
    sa.Column("status", sa.SmallInteger, comment="null: no answer"),
    sa.Column(
        "answer",
        sa.Text,
        nullable=False,
        comment="beginning of the answer, or why there is none",
    ),
    sa.Column(
        "verdict",
        sa.Text,
        nullable=False,
        comment="MessageVerdict: delivered, again, dead, split or held",
    ),
    sa.Column("next_at", UtcTime, comment="when the next attempt follows; null: none by itself"),
    sa.Index("iscp_attempts_by_message", "message_id", "endpoint"),
    sa.Index("iscp_attempts_by_time", "at"),
    sqlite_autoincrement=True,
)
"""One row for each request that was sent, or could not be."""

ISCP_ENDPOINTS = sa.Table(
    "iscp_endpoints",
    METADATA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("state", sa.Text, nullable=False, comment="active, paused or disabled"),
    sa.Column("reason", sa.Text, nullable=False, comment="why it is not active"),
    sa.Column("changed_at", UtcTime, nullable=False),
    sa.Column(
        "in_a_row",
        sa.Integer,
        nullable=False,
        comment="refusals since an attempt was answered otherwise",
    ),
    sa.Column(
        "failing_since",
        UtcTime,
        comment="first failure since an attempt was accepted; null: none",
    ),
    sa.Column("delivered_at", UtcTime, comment="of the last attempt that was accepted"),
    sa.Column(
        "seq",
        sa.BigInteger,
        nullable=False,
        comment="grows when a person changes its state",
    ),
)
"""One row for each endpoint that a sender served or a person changed."""

OUTBOX, ATTEMPTS, ENDPOINTS = ISCP_OUTBOX.c, ISCP_ATTEMPTS.c, ISCP_ENDPOINTS.c

# Spelt as in the partial indexes, or SQLite does not use them.
IS_NEXT: sa.ColumnElement[bool] = OUTBOX.state == sa.literal_column("0")
IS_PENDING: sa.ColumnElement[bool] = OUTBOX.state <= sa.literal_column("1")
HAS_ENDED: sa.ColumnElement[bool] = OUTBOX.state >= sa.literal_column("2")
