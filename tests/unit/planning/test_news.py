"""Reports of changed tenants, a bounded number at a time, against one report of all."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.model.moment import Moment
from iscp_dagster.planning.news import PendingNews, add_range, take_batches

TENANTS = st.frozensets(st.sampled_from("abcdefgh"))
LOOKS = st.lists(st.one_of(st.none(), st.lists(TENANTS, min_size=1, max_size=3)), max_size=12)


@given(LOOKS, st.integers(1, 4))
def test_every_changed_tenant_is_reported_after_its_change_and_the_backlog_stays_small(looks, room):
    """A look brings commits or none; in the end each tenant's last change was reported."""
    commits: list[frozenset[str]] = []
    pending: list[PendingNews] = []
    reported: dict[str, int] = {}

    def list_changed(range_: PendingNews) -> set[str]:
        first = 0 if range_.after is None else range_.after.version + 1
        return {t for tenants in commits[first : range_.upto.version + 1] for t in tenants}

    def look(new: list[frozenset[str]]) -> int:
        nonlocal pending
        if new:
            after = Moment(len(commits) - 1) if commits else None
            commits.extend(new)
            pending = add_range(pending, after, Moment(len(commits) - 1))
        news, pending = take_batches(pending, list_changed, room)
        pending = [
            PendingNews.from_json(json.loads(json.dumps(each.to_json()))) for each in pending
        ]
        assert len(pending) <= 2
        for each in news:
            for tenant in each.tenants:
                assert reported.get(tenant, -1) < each.upto.version
                reported[tenant] = each.upto.version
        return sum(len(each.tenants) for each in news)

    for new in looks:
        assert look(new or []) <= room
    while pending:
        look([])
    last = {tenant: number for number, tenants in enumerate(commits) for tenant in tenants}
    assert reported.keys() == last.keys()
    assert all(reported[tenant] >= version for tenant, version in last.items())
