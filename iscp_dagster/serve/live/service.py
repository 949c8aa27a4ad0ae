"""Subscriptions of a deployment: the schema's `subscribe`, over the log and ClickHouse."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.joblog.sql.reached import Reached, reached
from iscp_dagster.model.declared.tables import DEFAULT_TENANT
from iscp_dagster.model.jobs import JobID
from iscp_dagster.serve.access import Viewer
from iscp_dagster.serve.live.errors import SubscriptionError
from iscp_dagster.serve.live.feed import PAGE, Feed
from iscp_dagster.serve.live.hub import Hub
from iscp_dagster.serve.live.images import Images
from iscp_dagster.serve.live.reading import History
from iscp_dagster.serve.live.ring import MOST_ENTRIES, PATIENCE, Ring
from iscp_dagster.serve.live.subscription import PROGRESS_SECONDS, Subscription
from iscp_dagster.serve.live.telling import Message, Wanted
from iscp_dagster.serve.served import Served
from iscp_dagster.serve.where import parse


@dataclass(kw_only=True)
class Listening:
    """Who subscribes; `on_lost` gets the position of a subscriber that has become too slow."""

    viewer: Viewer
    on_lost: Callable[[str], None]
    subscription: Subscription | None = None
    """What it is told, once it has begun."""

    @property
    def position(self) -> str:
        """The cursor after what it has been told."""
        return self.subscription.position if self.subscription else ""


@dataclass(frozen=True, kw_only=True)
class IndexSource:
    """Where a changes index is read. Blocks; raises IscpError."""

    log: SqlLog
    job: JobID
    images: Images

    def reached(self, tenants: Collection[str] | None) -> Reached:
        """The watermarks of all tenants' jobs, or of some."""
        return reached(self.log.engine, self.job, tenants)

    def opened(self) -> tuple[int, History]:
        """The newest generation, and its rows."""
        generation = self.images.newest() or 0
        return generation, self.images.of(generation)


@dataclass(kw_only=True)
class Live:
    """All subscriptions of one server."""

    log: SqlLog
    entries: int = MOST_ENTRIES
    page: int = PAGE
    patience: float = PATIENCE
    progress_seconds: float = PROGRESS_SECONDS
    hub: Hub = field(init=False)

    def __post_init__(self) -> None:
        self.hub = Hub(touched=self.log.touched)

    async def subscribe(
        self, served: Served, given: Mapping[str, Any], context: Listening
    ) -> AsyncGenerator[Message, None]:
        """Tell the changes of an index. Raises SubscriptionError, BadValueError."""
        named = {each.name: each.field for each in served.columns}
        where = parse(served.by_field, given.get("where"))
        wanted = Wanted(where=where, tenants=context.viewer.tenants, named=named)
        # Those who knew other columns go on with a feed of theirs.
        name = f"{served.field} {hash(served.columns)}"
        async with self.hub.following(name, partial(self._feed, served)) as feed:
            subscription = context.subscription = Subscription(
                feed=feed,
                wanted=wanted,
                after=given.get("after"),
                snapshot=bool(given.get("snapshot")),
                progress=bool(given.get("progress")),
                on_lost=context.on_lost,
                every=self.progress_seconds,
            )
            async with aclosing(subscription.messages()) as messages:
                async for message in messages:
                    yield message

    def _feed(self, served: Served) -> Feed:
        source, index = served.source, served.index
        job = JobID(db=source.database, table=source.table, job=index.name)
        return Feed(
            index=f"{source.name}/{index.shown}",
            source=IndexSource(log=self.log, job=job, images=images_of(served)),
            ring=Ring(self.entries),
            page=min(self.page, self.entries // 2),
            patience=self.patience,
        )


def images_of(served: Served) -> Images:
    """The image rows of a changes index. Raises SubscriptionError if it is spread over shards."""
    if len(served.places) != 1:
        raise SubscriptionError(
            f"{served.field} is kept in {len(served.places)} shards, and the changes of several "
            "have no order; declare its Changes() without sharding=."
        )
    (place,) = served.places
    return Images(
        endpoint=place.endpoint,
        database=place.database,
        view=served.view,
        columns=served.columns,
        keys=served.keys,
        types={each.name: str(each.type.bare) for each in served.identity},
        tenant=served.source.tenant,
        lone=DEFAULT_TENANT,
    )
