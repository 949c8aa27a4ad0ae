"""Frames of a short journal, from which the tests of both sides of a stream are made."""

from durable_invocations.protocol.frames import make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb

INPUT = make_frame(pb.InputEntryMessage(value=b"in"))
OUTPUT = make_frame(pb.OutputEntryMessage(value=b"out"))
SLEEP = make_frame(pb.SleepEntryMessage(wake_up_time=7))
SLEPT = make_frame(pb.SleepEntryMessage(wake_up_time=7, empty=pb.Empty()))
SET = make_frame(pb.SetStateEntryMessage(key=b"k", value=b"v"))
END = make_frame(pb.EndMessage())


def ack(index):
    return make_frame(pb.EntryAckMessage(entry_index=index))


def suspension(*indexes):
    return make_frame(pb.SuspensionMessage(entry_indexes=indexes))
