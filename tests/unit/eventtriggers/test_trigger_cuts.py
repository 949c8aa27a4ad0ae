"""The same commits give the same events and ids, however they are cut into iterations."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp_dagster.joblog.sql.tables import METADATA
from support.jobs.log_rows import T0, log_in_memory
from support.lake.image_rows import GONE, HIGH, LOW, Alerts, Trades

DESKS = ("acme", "globex")
AMOUNTS = st.sampled_from([None, 100, 450, 600, 900, GONE])
KEYS = st.tuples(st.sampled_from(DESKS), st.integers(1, 2))
COMMITS = st.lists(st.dictionaries(KEYS, AMOUNTS, max_size=4), min_size=1, max_size=12)


def list_expected(trades: Trades) -> list[tuple[str, str, str, int]]:
    """Follow each row by itself, after the first commit."""
    events = []
    for key in sorted({key for commit in trades.commits for key in commit}):
        active = False
        for version in range(len(trades.commits)):
            amount = trades.state(version).get(key, GONE)
            was_active = active
            active = amount is not GONE and is_active(amount, active, hysteresis=trades.hysteresis)
            if active != was_active and version:
                name = f'["{key[0]}","{key[1]}"]'
                events.append(("MATCH" if active else "UNMATCH", key[0], name, version))
    return sorted(events)


def is_active(amount, before, *, hysteresis):
    if amount is None:
        return before if hysteresis else False
    if not hysteresis or amount > HIGH:
        return amount > HIGH
    return before and amount >= LOW


@pytest.fixture(scope="module")
def log():
    return log_in_memory(clock=lambda: T0)


def carry_out(log, trades, cuts, shuffle=list):
    """Iterate up to each of the cuts, in a log without rows."""
    with log.begin_write() as connection:
        for table in METADATA.sorted_tables:
            connection.execute(table.delete())
    alerts = Alerts(log, trades, shuffle=shuffle)
    alerts.register(*DESKS)
    for upto in cuts:
        alerts.iterate(upto)
    return alerts


def get_bodies(alerts):
    return {row["event_id"]: row["body"] for row in alerts.outbox()}


@settings(max_examples=20)
@given(commits=COMMITS, hysteresis=st.booleans(), data=st.data())
def test_any_cut_gives_the_events_of_the_model_under_the_same_ids(log, commits, hysteresis, data):
    trades, last = Trades(commits, hysteresis=hysteresis), len(commits) - 1
    cuts = data.draw(st.sets(st.integers(1, last))) if last else set()
    mixed = random.Random(data.draw(st.integers()))

    def shuffle(batches):
        rows = [row for batch in batches for row in batch]
        mixed.shuffle(rows)
        return [rows[:3], rows[3:]]

    outboxes = []
    for ends, order in [({last}, list), (cuts | {last}, shuffle)]:
        alerts = carry_out(log, trades, [0, *sorted(ends - {0})], order)
        assert sorted(alerts.events()) == list_expected(trades)
        outboxes.append(get_bodies(alerts))
        by_key = {}
        for _, tenant, key, version in alerts.events():
            by_key.setdefault((tenant, key), []).append(version)
        assert all(one < other for each in by_key.values() for one, other in pairwise(each))
    assert outboxes[0] == outboxes[1]


def test_an_iteration_for_each_commit_gives_the_bodies_that_one_gives(log):
    chance = random.Random(16)
    keys = [(desk, number) for desk in DESKS for number in (1, 2, 3)]
    amounts = [None, 100, 450, 600, 900, GONE]
    commits = [{key: chance.choice(amounts) for key in chance.sample(keys, 3)} for _ in range(36)]
    trades = Trades(commits)
    whole, cut = (get_bodies(carry_out(log, trades, cuts)) for cuts in ([0, 35], range(36)))
    assert whole == cut
    assert len(whole) == len(list_expected(trades)) > 20
