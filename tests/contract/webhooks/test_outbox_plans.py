"""The statements that a sender repeats go through an index, however much is pending."""

import sqlalchemy as sa

from iscp_dagster.events.ids import IdScheme
from iscp_dagster.joblog.sql.engine import open_engine
from iscp_dagster.webhooks.outbox import Outbox
from support.outbox.outbox_events import event, put, result


def test_no_statement_of_a_sender_or_a_trigger_scans_the_outbox(tmp_path):
    outbox = Outbox(open_engine(f"sqlite:///{tmp_path}/log.db"))
    outbox.ensure_log_tables()
    statements = {}

    @sa.event.listens_for(outbox.engine, "before_cursor_execute")
    def note(_connection, _cursor, statement, parameters, _context, _many):
        if "iscp_outbox" in statement and not statement.startswith("EXPLAIN"):
            statements[statement] = parameters

    put(outbox, event(1), event(2))
    put(outbox, event(2), event(3, key="2"))
    outbox.take_leases(["alerts"], "one", 60)
    outbox.poll_endpoints(["alerts"])
    batches = {"size": 2, "make_batch_id": IdScheme().make_batch_id}
    outbox.prepare_work("alerts", room=3, busy=["other"], **batches)
    (batch, *_) = outbox.prepare_work("alerts", room=3, busy=(), **batches)
    (work, *_) = outbox.prepare_work("alerts", room=3, busy=())
    for message in (*batch.messages, *work.messages):
        outbox.record_attempts(outbox.list_endpoints()["alerts"], [result(outbox, message)])
    outbox.resend_event("alarm-1")
    outbox.prune(outbox.clock())
    assert len(statements) > 12
    with outbox.engine.connect() as connection:
        plans = {
            step
            for statement, parameters in statements.items()
            for *_, step in connection.exec_driver_sql(
                f"EXPLAIN QUERY PLAN {statement}", parameters
            )
        }
    searched = {step for step in plans if "iscp_outbox" in step}
    assert any("iscp_outbox_due" in step for step in searched)
    assert any("iscp_outbox_lanes" in step for step in searched)
    assert {step for step in searched if not step.startswith("SEARCH")} == set()
