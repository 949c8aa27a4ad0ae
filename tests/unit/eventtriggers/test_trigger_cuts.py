"""The same commits give the same events and ids, however they are cut into iterations."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.joblog.sql.tables import METADATA
from support.jobs.log_rows import T0
from support.lake.image_rows import GONE, HIGH, LOW, Alerts, Trades

DESKS = ("acme", "globex")
AMOUNTS = st.sampled_from([None, 100, 450, 600, 900, GONE])
KEYS = st.tuples(st.sampled_from(DESKS), st.integers(1, 2))
COMMITS = st.lists(st.dictionaries(KEYS, AMOUNTS, max_size=4), min_size=1, max_size=12)


def expected(trades: Trades) -> list[tuple[str, str, str, int]]:
    """Follow each row by itself, after the first commit."""
    found = []
    for key in sorted({key for commit in trades.commits for key in commit}):
        active = False
        for version in range(len(trades.commits)):
            held = trades.state(version)
            amount = held.get(key, GONE)
            now = amount is not GONE and after(amount, active, hysteresis=trades.hysteresis)
            if now != active and version:
                name = f'["{key[0]}","{key[1]}"]'
                found.append(("MATCH" if now else "UNMATCH", key[0], name, version))
            active = now
    return sorted(found)


def after(amount, active, *, hysteresis):
    if amount is None:
        return active if hysteresis else False
    if not hysteresis or amount > HIGH:
        return amount > HIGH
    return active and amount >= LOW


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    found = SqlLog(f"sqlite:///{tmp_path_factory.mktemp('cuts')}/log.db", clock=lambda: T0)
    found.ensure()
    return found


def carried_out(log, trades, cuts, shuffle=list):
    """Iterate up to each of the cuts, in a log without rows."""
    with log.begin_write() as connection:
        for table in METADATA.sorted_tables:
            connection.execute(table.delete())
    alerts = Alerts(log, trades, shuffle=shuffle)
    alerts.register(*DESKS)
    for upto in cuts:
        alerts.iterate(upto)
    return alerts


@settings(max_examples=20)
@given(commits=COMMITS, hysteresis=st.booleans(), data=st.data())
def test_any_cut_gives_the_events_of_the_model_under_the_same_ids(log, commits, hysteresis, data):
    trades, last = Trades(commits, hysteresis=hysteresis), len(commits) - 1
    cuts = data.draw(st.sets(st.integers(1, last))) if last else set()
    mixed = random.Random(data.draw(st.integers()))

    def shuffled(batches):
        rows = [row for batch in batches for row in batch]
        mixed.shuffle(rows)
        return [rows[:3], rows[3:]]

    outboxes = []
    for some, shuffle in [({last}, list), (cuts | {last}, shuffled)]:
        found = carried_out(log, trades, [0, *sorted(some - {0})], shuffle)
        assert sorted(found.events()) == expected(trades)
        outboxes.append({row["event_id"]: row["body"] for row in found.outbox()})
        by_key = {}
        for _, tenant, key, version in found.events():
            by_key.setdefault((tenant, key), []).append(version)
        assert all(one < other for each in by_key.values() for one, other in pairwise(each))
    assert outboxes[0] == outboxes[1]


def test_thirty_five_iterations_give_the_bodies_that_one_gives(log):
    chance = random.Random(16)
    keys = [(desk, number) for desk in DESKS for number in (1, 2, 3)]
    amounts = [None, 100, 450, 600, 900, GONE]
    commits = [{key: chance.choice(amounts) for key in chance.sample(keys, 3)} for _ in range(36)]
    trades = Trades(commits)
    found = [
        {row["event_id"]: row["body"] for row in carried_out(log, trades, cuts).outbox()}
        for cuts in ([0, 35], range(36))
    ]
    assert found[0] == found[1]
    assert len(found[0]) == len(expected(trades)) > 20
