"""Subscriptions of a deployment: the schema's `subscribe`, over the log and ClickHouse."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.joblog.sql.watermarks import IndexWatermarks, read_watermarks
from iscp_dagster.model.declared.tables import DEFAULT_TENANT
from iscp_dagster.model.jobs import JobID
from iscp_dagster.serve.access import Viewer
from iscp_dagster.serve.live.errors import SubscriptionError
from iscp_dagster.serve.live.feed import PAGE, IndexFeed
from iscp_dagster.serve.live.hub import FeedHub
from iscp_dagster.serve.live.images import ImageReader
from iscp_dagster.serve.live.messages import ChangeFilter, ChangeMessage
from iscp_dagster.serve.live.reading import ChangeHistory
from iscp_dagster.serve.live.ring import MOST_ENTRIES, PATIENCE_SECONDS, Ring
from iscp_dagster.serve.live.subscription import PROGRESS_SECONDS, Subscription
from iscp_dagster.serve.served_index import ServedIndex
from iscp_dagster.serve.where import parse_where


@dataclass(kw_only=True)
class SubscriberContext:
    """A subscriber; `on_lost` gets its position when it has become too slow."""

    viewer: Viewer
    on_lost: Callable[[str], None]
    subscription: Subscription | None = None
    """Its subscription, once it has begun."""

    @property
    def position(self) -> str:
        """The cursor after what it has received."""
        return self.subscription.position if self.subscription else ""


@dataclass(frozen=True, kw_only=True)
class IndexSource:
    """Where a changes index is read. Blocks; raises IscpError."""

    log: SqlLog
    job: JobID
    images: ImageReader

    def read_watermarks(self, tenants: Collection[str] | None) -> IndexWatermarks:
        """The watermarks of all tenants' jobs, or of some."""
        return read_watermarks(self.log.engine, self.job, tenants)

    def open_history(self) -> tuple[int, ChangeHistory]:
        """The newest generation, and its rows."""
        generation = self.images.find_newest_generation() or 0
        return generation, self.images.select_generation(generation)


@dataclass(kw_only=True)
class SubscriptionService:
    """All subscriptions of one server."""

    log: SqlLog
    entries: int = MOST_ENTRIES
    page: int = PAGE
    patience: float = PATIENCE_SECONDS
    progress_seconds: float = PROGRESS_SECONDS
    hub: FeedHub = field(init=False)

    def __post_init__(self) -> None:
        self.hub = FeedHub(find_touched=self.log.read_changed_tenants)

    async def subscribe(
        self, served: ServedIndex, args: Mapping[str, Any], context: SubscriberContext
    ) -> AsyncGenerator[ChangeMessage, None]:
        """Stream the changes of an index. Raises SubscriptionError, BadValueError."""
        field_names = {column.name: column.field for column in served.columns}
        where = parse_where(served.by_field, args.get("where"))
        change_filter = ChangeFilter(
            where=where, tenants=context.viewer.tenants, field_names=field_names
        )
        # Subscribers with other columns keep a feed of their own.
        name = f"{served.field} {hash(served.columns)}"
        async with self.hub.follow_feed(name, partial(self._build_feed, served)) as feed:
            subscription = context.subscription = Subscription(
                feed=feed,
                change_filter=change_filter,
                after=args.get("after"),
                snapshot=bool(args.get("snapshot")),
                progress=bool(args.get("progress")),
                on_lost=context.on_lost,
                progress_seconds=self.progress_seconds,
            )
            async with aclosing(subscription.stream_messages()) as messages:
                async for message in messages:
                    yield message

    def _build_feed(self, served: ServedIndex) -> IndexFeed:
        source, index = served.source, served.index
        job = JobID(db=source.database, table=source.table, job=index.name)
        return IndexFeed(
            index=f"{source.name}/{index.shown}",
            source=IndexSource(log=self.log, job=job, images=build_image_reader(served)),
            ring=Ring(self.entries),
            page_size=min(self.page, self.entries // 2),
            patience=self.patience,
        )


def build_image_reader(served: ServedIndex) -> ImageReader:
    """The image rows of a changes index. Raises SubscriptionError if it is spread over shards."""
    if len(served.shards) != 1:
        raise SubscriptionError(
            f"{served.field} is kept in {len(served.shards)} shards, and the changes of several "
            "shards have no order; declare its Changes() without sharding=."
        )
    (shard,) = served.shards
    return ImageReader(
        endpoint=shard.endpoint,
        database=shard.database,
        view=served.view,
        columns=served.columns,
        keys=served.keys,
        types={column.name: str(column.type.bare) for column in served.identity_columns},
        tenant=served.source.tenant,
        default_tenant=DEFAULT_TENANT,
    )
