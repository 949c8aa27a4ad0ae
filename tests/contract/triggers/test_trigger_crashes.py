"""A run that dies at any point of a trigger's transaction: no event is lost or sent twice."""

import os
from dataclasses import replace

import pytest

from iscp_dagster.webhooks.outbox import Outbox
from support.lake.image_rows import GONE, Alerts, Trades

pytestmark = pytest.mark.parametrize("make_log", ["sqlite"], indirect=True)
COMMITS = [
    {("acme", 1): 100, ("globex", 1): 900},
    {("acme", 1): 600, ("globex", 1): 450},
    {("acme", 1): GONE, ("globex", 1): 300},
]
DIED = 9


class Fatal:
    """Dies before or after the call of a method, as a process that is killed does."""

    def __init__(self, inner, when, method):
        self._inner, self._when, self._method = inner, when, method

    def __getattr__(self, name):
        attribute = getattr(self._inner, name)
        if name != self._method:
            return attribute

        def die(*values, **named):
            if self._when == "after":
                attribute(*values, **named)
            os._exit(DIED)

        return die


def kill_run(alerts, point):
    """Have a process of its own begin the iteration and die at the point."""
    child = os.fork()
    if child == 0:
        try:
            sink = alerts.begin_run(1, run="dead")
            retriever = alerts.retriever(sink, snapshot=False)
            consumer = alerts.consumer()
            method = point[1]
            if method == "record_events":
                consumer = replace(consumer, outbox=Fatal(Outbox(alerts.log.engine), *point))
            elif method == "update_watermark":
                retriever = Fatal(retriever, *point)
            consumer.consume(retriever)
        finally:
            os._exit(DIED if point[1] == "commit" else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == DIED


@pytest.mark.parametrize(
    "point",
    [
        ("before", "record_events"),
        ("after", "record_events"),
        ("before", "update_watermark"),
        ("after", "update_watermark"),
        ("after", "commit"),
    ],
    ids=" ".join,
)
def test_the_next_run_gives_the_events_that_the_dead_one_did_not(log, point):
    alerts = Alerts(log, Trades(COMMITS))
    alerts.register("acme", "globex")
    alerts.iterate(0)
    kill_run(alerts, point)
    committed = point == ("after", "commit")
    assert alerts.watermarks() == dict.fromkeys(["acme", "globex"], 1 if committed else 0)
    assert len(alerts.events()) == int(committed)
    alerts.log.recover_run_jobs(["dead"])
    alerts.iterate(2)
    a1, b1 = '["acme","1"]', '["globex","1"]'
    assert sorted(alerts.events()) == [
        ("MATCH", "acme", a1, 1),
        ("UNMATCH", "acme", a1, 2),
        ("UNMATCH", "globex", b1, 2),
    ]
    assert (alerts.active(), alerts.held("globex").row_count) == (set(), 0)
