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

INPUT = make_frame(pb.InputEntryMessage(value=b"in"))
OUTPUT = make_frame(pb.OutputEntryMessage(value=b"out"))
SLEEP = make_frame(pb.SleepEntryMessage(wake_up_time=7))
SLEPT = make_frame(pb.SleepEntryMessage(wake_up_time=7, empty=pb.Empty()))
GET = make_frame(pb.GetStateEntryMessage(key=b"k", value=b"v"))
AWAKEABLE = make_frame(pb.AwakeableEntryMessage())
RUN = make_frame(pb.RunEntryMessage(name="charge"))
RAN = make_frame(pb.RunEntryMessage(name="charge", value=b"1"), requires_ack=True)
SET = make_frame(pb.SetStateEntryMessage(key=b"k", value=b"v"))
END = make_frame(pb.EndMessage())
ENDED = [h.Send(frame=END), h.Close(ending=h.Ending.ENDED)]


class Side:
    """The handler's side after the replay of a journal, whose entries it gives to each step."""

    def __init__(self, *journal, version=3):
        self.journal = [INPUT, *journal]
        self.state, self.out = HandlerState(version=version), []
        start = pb.StartMessage(known_entries=len(self.journal))
        self.do(*(h.FrameReceived(frame=each) for each in (make_frame(start), *self.journal)))
        assert self.out.pop() == h.Ready()
        self.out.clear()
        self.do(self.issued(INPUT))

    def issued(self, entry, kind=h.Issued):
        index = self.state.issued
        recorded = self.journal[index] if index < len(self.journal) else None
        return kind(entry=entry, recorded=recorded, where="orders.py, line 12")

    def do(self, *events):
        """Return what follows; an entry stands for Issued, a core message for Received."""
        begin = len(self.out)
        for event in events:
            named = event
            if isinstance(event, Frame):
                named = self.issued(event) if event.kind.entry else h.FrameReceived(frame=event)
            self.state, more = handler_side.step(self.state, named)
            self.out += more
        return self.out[begin:]

    def begin(self):
        return self.do(self.issued(RUN, h.RunBegun))

    def fails(self, *events):
        *_, sent, closed = self.do(*events)
        assert sent.frame.code == kinds.ERROR.code
        assert closed.ending is h.Ending.FAILED
        assert ErrorReport.read(sent.frame.message()) == closed.report
        assert self.do(*events, OUTPUT, h.Returned(), h.InputClosed()) == []
        return closed.report


def suspension(*indexes):
    sent = h.Send(frame=make_frame(pb.SuspensionMessage(entry_indexes=indexes)))
    return [sent, h.Close(ending=h.Ending.SUSPENDED)]


def waits(*indexes):
    return h.Awaited(indexes=frozenset(indexes))


def ack(index):
    return make_frame(pb.EntryAckMessage(entry_index=index))


def test_a_first_attempt_from_start_to_end():
    start = pb.StartMessage(id=b"i", known_entries=1)
    side, out = HandlerState(), []
    for event in (
        *(h.FrameReceived(frame=make_frame(start)), h.FrameReceived(frame=INPUT), h.InputClosed()),
        *(h.Issued(entry=INPUT, recorded=INPUT), h.Issued(entry=SET), h.Issued(entry=OUTPUT)),
        h.Returned(),
    ):
        side, more = handler_side.step(side, event)
        out += more
    began = [h.Started(message=start), h.Recorded(index=0, entry=INPUT), h.Ready()]
    assert out == [*began, h.Send(frame=SET), h.Send(frame=OUTPUT), *ENDED]
    assert side.phase is HandlerPhase.CLOSED


def test_recorded_entries_are_not_sent_again_and_their_results_are_told():
    side = Side(RAN, SLEPT, AWAKEABLE, SET)
    assert side.state.phase is HandlerPhase.REPLAYING
    assert side.begin() == [h.Resolve(index=1, result=Value(value=b"1"))]
    assert side.do(SLEEP) == [h.Resolve(index=2, result=EMPTY)]
    assert side.do(AWAKEABLE) == []
    assert side.state.phase is HandlerPhase.REPLAYING
    assert side.do(SET) == []
    assert side.state.phase is HandlerPhase.PROCESSING
    assert side.do(OUTPUT) == [h.Send(frame=OUTPUT)]


def test_a_completion_may_come_before_the_handler_issues_its_entry():
    side = Side(SLEPT, AWAKEABLE)
    told = h.Resolve(index=2, result=Value(value=b"x"))
    assert side.do(make_completion(2, told.result)) == [told]
    assert side.do(SLEEP, AWAKEABLE) == [h.Resolve(index=1, result=EMPTY)]
    assert side.do(OUTPUT, h.Returned()) == [h.Send(frame=OUTPUT), *ENDED]


def test_an_entry_with_a_result_at_its_creation_is_resolved_at_once():
    assert Side().do(GET) == [h.Send(frame=GET), h.Resolve(index=1, result=Value(value=b"v"))]


def test_a_run_is_executed_sent_and_acknowledged():
    side = Side()
    assert side.begin() == [h.Execute(index=1)]
    assert side.do(h.Finished(index=1, entry=RAN)) == [h.Send(frame=RAN)]
    assert side.do(ack(1), ack(1)) == [h.Acknowledged(index=1)]


def test_an_ack_of_an_entry_is_one_of_those_before_it():
    side = Side()
    side.begin()
    side.begin()
    side.do(h.Finished(index=1, entry=RAN), h.Finished(index=2, entry=RAN), waits(1))
    assert side.do(ack(2)) == [h.Acknowledged(index=1), h.Acknowledged(index=2)]
    assert side.do(h.InputClosed()) == []


def test_what_is_issued_during_a_run_is_sent_after_it():
    side = Side()
    assert side.begin() == [h.Execute(index=1)]
    assert side.begin() == [h.Execute(index=2)]
    assert side.do(SLEEP, GET) == [h.Resolve(index=4, result=Value(value=b"v"))]
    assert side.do(h.Finished(index=2, entry=RAN)) == []
    sent = [RAN, RAN, SLEEP, GET]
    assert side.do(h.Finished(index=1, entry=RAN)) == [h.Send(frame=each) for each in sent]
    assert side.do(OUTPUT, h.Returned()) == [h.Send(frame=OUTPUT), *ENDED]


def test_a_handler_that_returns_during_a_run_ends_after_it():
    side = Side()
    side.begin()
    assert side.do(OUTPUT, h.Returned()) == []
    out = side.do(h.Finished(index=1, entry=RAN))
    assert out == [h.Send(frame=RAN), h.Send(frame=OUTPUT), *ENDED]


def test_a_handler_suspends_when_the_input_is_closed_and_it_waits():
    assert Side(SLEEP).do(SLEEP, waits(1)) == []
    assert Side(SLEEP).do(SLEEP, waits(1), h.InputClosed()) == suspension(1)
    assert Side().do(h.InputClosed(), SLEEP, AWAKEABLE, waits(2, 1))[2:] == suspension(1, 2)


def test_a_handler_suspends_on_a_run_that_is_not_acknowledged():
    side = Side()
    side.do(h.InputClosed())
    side.begin()
    assert side.do(waits(1)) == []
    assert side.do(h.Finished(index=1, entry=RAN)) == [h.Send(frame=RAN), *suspension(1)]


def test_a_handler_does_not_suspend_while_it_can_go_on():
    side = Side(SLEEP, AWAKEABLE)
    assert side.do(SLEEP, AWAKEABLE, waits(1, 2), make_completion(2, Value(value=b""))) != []
    assert side.do(h.InputClosed()) == []
    assert side.do(waits(1, 2)) == []
    assert side.do(waits(1)) == suspension(1)
    side = Side(SLEEP)
    side.do(SLEEP, waits(1), waits())
    assert side.do(h.InputClosed()) == []
    side.begin()
    assert side.do(waits(1)) == []


def test_a_failure_is_reported_and_its_delay_is_not_told_to_version_1():
    report = ErrorReport(message="later", retry_after=5, index=1, name="charge", kind=0x0C05)
    assert Side().fails(h.Failed(report=report)) == report
    *_, sent, _ = Side(version=1).do(h.Failed(report=report))
    assert not sent.frame.message().HasField("next_retry_delay")


def test_the_first_result_of_an_entry_stands():
    side = Side(AWAKEABLE)
    (first,) = side.do(AWAKEABLE, make_completion(1, Failure(code=500, message="no")))
    assert first == h.Resolve(index=1, result=Failure(code=500, message="no"))
    assert side.do(make_completion(1, Value(value=b"late"))) == []


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (make_frame(pb.CompletionMessage(entry_index=1)), "no result"),
        (make_completion(1, Value(value=b"x")), "entry 1 with value"),
        (make_completion(2, EMPTY), "entry 2 with empty"),
        (make_completion(0, EMPTY), "entry 0"),
        (make_completion(0, Value(value=b"")), "entry 0"),
        (make_completion(0, Failure(code=500, message="")), "entry 0"),
        (make_completion(3, EMPTY), "entry 3"),
        (make_completion(2**32 - 1, EMPTY), "entry 4294967295"),
        (ack(3), "entry 3, but only 3 were sent"),
        (ack(2**32 - 1), "entry 4294967295"),
        (h.FrameReceived(frame=SET), "after the replay"),
        (make_frame(pb.StartMessage(known_entries=1)), "after the replay"),
        (suspension(1)[0].frame, "after the replay"),
        (END, "after the replay"),
        (Frame(code=kinds.COMPLETION.code, body=b"\xff"), "cannot be parsed"),
    ],
    ids=str,
)
def test_what_a_runtime_may_not_send_after_the_replay(sent, said):
    report = Side(SLEEP, AWAKEABLE).fails(sent)
    assert said in report.message
    assert report.code == 571


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([], "0 of an unknown number of entries"),
        ([INPUT], "begins with Input"),
        ([ack(0)], "begins with EntryAck"),
        ([make_frame(pb.StartMessage())], "no entries"),
        ([make_frame(pb.StartMessage(known_entries=2)), INPUT], "1 of 2 entries"),
        ([make_frame(pb.StartMessage(known_entries=2)), SET], "as entry 0"),
        ([make_frame(pb.StartMessage(known_entries=2)), INPUT, INPUT], "as entry 1"),
        (
            [make_frame(pb.StartMessage(known_entries=2)), INPUT, make_completion(0, EMPTY)],
            "as entry 1",
        ),
        *(
            (
                [
                    make_frame(pb.StartMessage(known_entries=2)),
                    INPUT,
                    Frame(code=0xFC00, body=body),
                ],
                said,
            )
            for body, said in ((b"\x72\x00", "uses the field 14"), (b"\xff", "not a protobuf"))
        ),
    ],
    ids=str,
)
def test_what_a_runtime_may_not_send_before_the_replay_is_whole(sent, said):
    state, out = HandlerState(), []
    for event in (*(h.FrameReceived(frame=each) for each in sent), h.InputClosed()):
        state, more = handler_side.step(state, event)
        out += more
    assert out[-1].report.code == 571
    assert said in out[-1].report.message


def test_a_step_that_is_not_the_recorded_one_is_a_mismatch():
    report = Side(SET).fails(SLEEP)
    assert (report.code, report.index, report.kind) == (570, 1, kinds.SET_STATE.code)
    assert "Entry 1 of the journal is SetState key='k'" in report.message
    assert "issues Sleep at orders.py, line 12" in report.message
    side = Side(RAN)
    assert side.fails(SET).name == "charge"
    side = Side(SET)
    assert "but the handler ends" in side.fails(h.Returned(recorded=SET)).message


def test_a_replayed_run_needs_a_result():
    side = Side(RUN)
    assert "Run without a result" in side.fails(side.issued(RUN, h.RunBegun)).message


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_only_a_run_that_was_begun_gets_a_result_and_only_one(index):
    side = Side(RAN)
    side.begin()
    side.begin()
    assert side.do(h.Finished(index=2, entry=RAN)) == [h.Send(frame=RAN)]
    assert "not a Run that waits" in side.fails(h.Finished(index=index, entry=RAN)).message


def test_what_the_runtimes_version_lacks_is_refused_to_the_handler():
    cancel = make_frame(pb.CancelInvocationEntryMessage(invocation_id="inv_1x"))
    assert "version 3" in Side(version=2).fails(cancel).message
    assert Side().do(cancel) == [h.Send(frame=cancel)]
