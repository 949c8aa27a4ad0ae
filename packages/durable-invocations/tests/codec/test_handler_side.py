"""A handler's steps and the runtime's frames, and what follows for the handler."""

import pytest

from durable_invocations.journal import handler_events as h
from durable_invocations.journal import handler_side
from durable_invocations.journal.handler_state import HandlerPhase, HandlerState
from durable_invocations.protocol import kinds
from durable_invocations.protocol.failures import ErrorReport, Failure
from durable_invocations.protocol.frames import Frame, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import EMPTY, Value, make_completion
from runtime_support.errors import assert_names
from runtime_support.journal_frames import END, INPUT, OUTPUT, SET, SLEEP, SLEPT, ack, suspension

GET = make_frame(pb.GetStateEntryMessage(key=b"k", value=b"v"))
AWAKEABLE = make_frame(pb.AwakeableEntryMessage())
RUN = make_frame(pb.RunEntryMessage(name="charge"))
RAN = make_frame(pb.RunEntryMessage(name="charge", value=b"1"), requires_ack=True)
ENDED = [h.Send(frame=END), h.Close(ending=h.Ending.ENDED)]


class Side:
    """The handler's side after the replay of a journal, whose entries it gives to each step."""

    def __init__(self, *journal, version=3):
        self.journal = [INPUT, *journal]
        self.state, self.out = HandlerState(version=version), []
        start = pb.StartMessage(known_entries=len(self.journal))
        self.do(*(h.FrameReceived(frame=frame) for frame in (make_frame(start), *self.journal)))
        assert self.out.pop() == h.Ready()
        self.out.clear()
        self.do(self.issue(INPUT))

    def issue(self, entry, kind=h.Issued):
        index = self.state.issued
        recorded = self.journal[index] if index < len(self.journal) else None
        return kind(entry=entry, recorded=recorded, where="orders.py, line 12")

    def do(self, *events):
        """Return what follows; an entry stands for Issued, another frame for FrameReceived."""
        begin = len(self.out)
        for event in events:
            if isinstance(event, Frame):
                event = self.issue(event) if event.kind.entry else h.FrameReceived(frame=event)  # noqa: PLW2901
            self.state, out = handler_side.step(self.state, event)
            self.out += out
        return self.out[begin:]

    def begin_run(self):
        return self.do(self.issue(RUN, h.RunBegun))

    def do_and_fail(self, *events):
        """The report with which these events end the attempt."""
        *_, sent, closed = self.do(*events)
        assert sent.frame.code == kinds.ERROR.code
        assert closed.ending is h.Ending.FAILED
        assert ErrorReport.read(sent.frame.message()) == closed.report
        assert self.do(*events, OUTPUT, h.Returned(), h.InputClosed()) == []
        return closed.report


def suspended(*indexes):
    return [h.Send(frame=suspension(*indexes)), h.Close(ending=h.Ending.SUSPENDED)]


def awaits(*indexes):
    return h.Awaited(indexes=frozenset(indexes))


def test_a_first_attempt_from_start_to_end():
    start = pb.StartMessage(id=b"i", known_entries=1)
    state, out = HandlerState(), []
    for event in (
        *(h.FrameReceived(frame=make_frame(start)), h.FrameReceived(frame=INPUT), h.InputClosed()),
        *(h.Issued(entry=INPUT, recorded=INPUT), h.Issued(entry=SET), h.Issued(entry=OUTPUT)),
        h.Returned(),
    ):
        state, more = handler_side.step(state, event)
        out += more
    begin = [h.Started(message=start), h.Recorded(index=0, entry=INPUT), h.Ready()]
    assert out == [*begin, h.Send(frame=SET), h.Send(frame=OUTPUT), *ENDED]
    assert state.phase is HandlerPhase.CLOSED


def test_recorded_entries_are_resolved_and_not_sent_again():
    side = Side(RAN, SLEPT, AWAKEABLE, SET)
    assert side.state.phase is HandlerPhase.REPLAYING
    assert side.begin_run() == [h.Resolve(index=1, result=Value(value=b"1"))]
    assert side.do(SLEEP) == [h.Resolve(index=2, result=EMPTY)]
    assert side.do(AWAKEABLE) == []
    assert side.state.phase is HandlerPhase.REPLAYING
    assert side.do(SET) == []
    assert side.state.phase is HandlerPhase.PROCESSING
    assert side.do(OUTPUT) == [h.Send(frame=OUTPUT)]


def test_a_completion_may_come_before_the_handler_issues_its_entry():
    side = Side(SLEPT, AWAKEABLE)
    resolved = h.Resolve(index=2, result=Value(value=b"x"))
    assert side.do(make_completion(2, resolved.result)) == [resolved]
    assert side.do(SLEEP, AWAKEABLE) == [h.Resolve(index=1, result=EMPTY)]
    assert side.do(OUTPUT, h.Returned()) == [h.Send(frame=OUTPUT), *ENDED]


def test_an_entry_with_a_result_at_its_creation_is_resolved_at_once():
    assert Side().do(GET) == [h.Send(frame=GET), h.Resolve(index=1, result=Value(value=b"v"))]


def test_a_run_is_executed_sent_and_acknowledged():
    side = Side()
    assert side.begin_run() == [h.Execute(index=1)]
    assert side.do(h.RunFinished(index=1, entry=RAN)) == [h.Send(frame=RAN)]
    assert side.do(ack(1), ack(1)) == [h.Acknowledged(index=1)]


def test_an_ack_of_an_entry_acknowledges_the_entries_before_it_too():
    side = Side()
    side.begin_run()
    side.begin_run()
    side.do(h.RunFinished(index=1, entry=RAN), h.RunFinished(index=2, entry=RAN), awaits(1))
    assert side.do(ack(2)) == [h.Acknowledged(index=1), h.Acknowledged(index=2)]
    assert side.do(h.InputClosed()) == []


def test_entries_that_are_issued_during_a_run_are_sent_after_it():
    side = Side()
    assert side.begin_run() == [h.Execute(index=1)]
    assert side.begin_run() == [h.Execute(index=2)]
    assert side.do(SLEEP, GET) == [h.Resolve(index=4, result=Value(value=b"v"))]
    assert side.do(h.RunFinished(index=2, entry=RAN)) == []
    frames = [RAN, RAN, SLEEP, GET]
    assert side.do(h.RunFinished(index=1, entry=RAN)) == [h.Send(frame=frame) for frame in frames]
    assert side.do(OUTPUT, h.Returned()) == [h.Send(frame=OUTPUT), *ENDED]


def test_a_handler_that_returns_during_a_run_ends_after_it():
    side = Side()
    side.begin_run()
    assert side.do(OUTPUT, h.Returned()) == []
    out = side.do(h.RunFinished(index=1, entry=RAN))
    assert out == [h.Send(frame=RAN), h.Send(frame=OUTPUT), *ENDED]


def test_a_handler_suspends_when_the_input_is_closed_and_it_waits():
    assert Side(SLEEP).do(SLEEP, awaits(1)) == []
    assert Side(SLEEP).do(SLEEP, awaits(1), h.InputClosed()) == suspended(1)
    assert Side().do(h.InputClosed(), SLEEP, AWAKEABLE, awaits(2, 1))[2:] == suspended(1, 2)


def test_a_handler_suspends_on_a_run_that_is_not_acknowledged():
    side = Side()
    side.do(h.InputClosed())
    side.begin_run()
    assert side.do(awaits(1)) == []
    assert side.do(h.RunFinished(index=1, entry=RAN)) == [h.Send(frame=RAN), *suspended(1)]


def test_a_handler_does_not_suspend_while_it_can_go_on():
    side = Side(SLEEP, AWAKEABLE)
    assert side.do(SLEEP, AWAKEABLE, awaits(1, 2), make_completion(2, Value(value=b""))) != []
    assert side.do(h.InputClosed()) == []
    assert side.do(awaits(1, 2)) == []
    assert side.do(awaits(1)) == suspended(1)
    side = Side(SLEEP)
    side.do(SLEEP, awaits(1), awaits())
    assert side.do(h.InputClosed()) == []
    side.begin_run()
    assert side.do(awaits(1)) == []


def test_a_failure_is_reported_to_version_1_without_its_delay():
    report = ErrorReport(message="later", retry_after=5, index=1, name="charge", kind=0x0C05)
    assert Side().do_and_fail(h.Failed(report=report)) == report
    *_, sent, _ = Side(version=1).do(h.Failed(report=report))
    assert not sent.frame.message().HasField("next_retry_delay")


def test_the_first_result_of_an_entry_stands():
    side = Side(AWAKEABLE)
    (first,) = side.do(AWAKEABLE, make_completion(1, Failure(code=500, message="no")))
    assert first == h.Resolve(index=1, result=Failure(code=500, message="no"))
    assert side.do(make_completion(1, Value(value=b"late"))) == []


@pytest.mark.parametrize(
    ("frame", "values"),
    [
        (make_frame(pb.CompletionMessage(entry_index=1)), ["entry 1", "no result"]),
        (make_completion(1, Value(value=b"x")), ["entry 1", "value"]),
        (make_completion(2, EMPTY), ["entry 2", "empty"]),
        (make_completion(0, EMPTY), ["entry 0", "empty"]),
        (make_completion(0, Value(value=b"")), ["entry 0", "value"]),
        (make_completion(0, Failure(code=500, message="")), ["entry 0", "failure"]),
        (make_completion(3, EMPTY), ["entry 3"]),
        (make_completion(2**32 - 1, EMPTY), ["entry 4294967295"]),
        (ack(3), ["entry 3", "only 3"]),
        (ack(2**32 - 1), ["entry 4294967295", "only 3"]),
        (h.FrameReceived(frame=SET), [kinds.SET_STATE, "replay"]),
        (make_frame(pb.StartMessage(known_entries=1)), [kinds.START, "replay"]),
        (suspension(1), [kinds.SUSPENSION, "replay"]),
        (END, [kinds.END, "replay"]),
        (Frame(code=kinds.COMPLETION.code, body=b"\xff"), [kinds.COMPLETION]),
    ],
    ids=str,
)
def test_a_runtime_may_only_complete_and_acknowledge_after_the_replay(frame, values):
    report = Side(SLEEP, AWAKEABLE).do_and_fail(frame)
    assert report.code == 571
    assert_names(report.message, *values)


START_OF_2 = make_frame(pb.StartMessage(known_entries=2))


@pytest.mark.parametrize(
    ("frames", "values"),
    [
        ([], ["0 of an unknown"]),
        ([INPUT], [kinds.INPUT, "Start"]),
        ([ack(0)], [kinds.ENTRY_ACK, "Start"]),
        ([make_frame(pb.StartMessage())], ["Start", "Input"]),
        ([START_OF_2, INPUT], ["1 of 2"]),
        ([START_OF_2, SET], [kinds.SET_STATE, "entry 0"]),
        ([START_OF_2, INPUT, INPUT], [kinds.INPUT, "entry 1"]),
        ([START_OF_2, INPUT, make_completion(0, EMPTY)], [kinds.COMPLETION, "entry 1"]),
        ([START_OF_2, INPUT, Frame(code=0xFC00, body=b"\x72\x00")], ["custom", "field 14"]),
        ([START_OF_2, INPUT, Frame(code=0xFC00, body=b"\xff")], ["custom", "protobuf"]),
    ],
    ids=str,
)
def test_a_runtime_must_begin_with_a_start_and_a_whole_replay(frames, values):
    state, out = HandlerState(), []
    for event in (*(h.FrameReceived(frame=frame) for frame in frames), h.InputClosed()):
        state, more = handler_side.step(state, event)
        out += more
    assert out[-1].report.code == 571
    assert_names(out[-1].report.message, *values)


def test_a_step_that_is_not_the_recorded_one_is_a_mismatch():
    report = Side(SET).do_and_fail(SLEEP)
    assert (report.code, report.index, report.kind) == (570, 1, kinds.SET_STATE.code)
    assert_names(report.message, "Entry 1", "SetState key='k'", "Sleep", "orders.py, line 12")
    assert Side(RAN).do_and_fail(SET).name == "charge"
    report = Side(SET).do_and_fail(h.Returned(recorded=SET))
    assert (report.code, report.index, report.kind) == (570, 1, kinds.SET_STATE.code)


def test_a_replayed_run_needs_a_result():
    side = Side(RUN)
    report = side.do_and_fail(side.issue(RUN, h.RunBegun))
    assert report.code == 571
    assert_names(report.message, "Entry 1", "Run", "result")


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_only_a_run_that_has_begun_gets_a_result_and_only_one(index):
    side = Side(RAN)
    side.begin_run()
    side.begin_run()
    assert side.do(h.RunFinished(index=2, entry=RAN)) == [h.Send(frame=RAN)]
    report = side.do_and_fail(h.RunFinished(index=index, entry=RAN))
    assert report.code == 571
    assert_names(report.message, f"Entry {index}", "Run")


def test_an_entry_that_the_runtimes_version_lacks_fails_the_attempt():
    cancel = make_frame(pb.CancelInvocationEntryMessage(invocation_id="inv_1x"))
    report = Side(version=2).do_and_fail(cancel)
    assert_names(report.message, kinds.CANCEL_INVOCATION, "version 3", 2)
    assert Side().do(cancel) == [h.Send(frame=cancel)]
