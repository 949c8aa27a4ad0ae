"""graphql-transport-ws as a pure machine: close codes, and any order of messages."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp_dagster.serve.live.transport.protocol import (
    MOST_REASON,
    AdmitClient,
    CloseSocket,
    Conversation,
    SendMessage,
    StartOperation,
    StopOperation,
    format_slow_reason,
)
from support.errors import assert_names

INIT = {"type": "connection_init"}
ASK = {"type": "subscribe", "id": "a", "payload": {"query": "subscription { x }"}}


def send(conversation, message):
    return conversation.handle_frame(json.dumps(message))


def open_conversation(**caps):
    conversation = Conversation(**caps)
    assert send(conversation, INIT) == [AdmitClient({})]
    assert conversation.accept_connection() == [SendMessage({"type": "connection_ack"})]
    return conversation


def test_an_operation_sends_its_results_and_ends():
    conversation = open_conversation()
    started = StartOperation(serial=1, query="subscription { x }", variables=None, operation=None)
    assert send(conversation, ASK) == [started]
    result = {"type": "next", "id": "a", "payload": {"data": {"x": 1}}}
    assert conversation.send_result(1, {"data": {"x": 1}}) == [SendMessage(result)]
    assert conversation.complete_operation(1) == [SendMessage({"type": "complete", "id": "a"})]
    assert conversation.send_result(1, {"data": {}}) == []


def test_a_failed_operation_sends_its_errors_and_leaves_the_others():
    conversation = open_conversation()
    send(conversation, ASK)
    send(conversation, ASK | {"id": "b"})
    error = {"type": "error", "id": "a", "payload": [{"message": "no"}]}
    assert conversation.fail_operation(1, [{"message": "no"}]) == [SendMessage(error)]
    assert conversation.running == (2,)


def test_an_id_can_be_used_again_and_late_results_of_the_first_are_dropped():
    conversation = open_conversation()
    send(conversation, ASK)
    assert send(conversation, {"type": "complete", "id": "a"}) == [StopOperation(1)]
    (again,) = send(conversation, ASK)
    assert again.serial == 2
    assert conversation.send_result(1, {"data": {}}) == conversation.fail_operation(1, []) == []
    assert send(conversation, {"type": "complete", "id": "unknown"}) == []


def ask_with(**payload):
    return ASK | {"payload": {"query": "{x}", **payload}}


@pytest.mark.parametrize(
    ("message", "value"),
    [
        ({"type": "nonsense"}, "'nonsense'"),
        ({"type": "ping", "payload": 3}, "payload"),
        (ASK | {"id": ""}, "id"),
        (ASK | {"payload": {}}, "query"),
        (ask_with(variables=[1]), "variables"),
        (ask_with(operationName=1), "operationName"),
    ],
)
def test_a_malformed_message_closes_and_its_fault_is_the_reason(message, value):
    (close,) = send(open_conversation(), message)
    assert close.code == 4400
    assert_names(close.reason, value)


def test_the_reason_of_a_repeated_id_names_it():
    conversation = open_conversation()
    send(conversation, ASK)
    stop, close = send(conversation, ASK)
    assert (stop, close.code) == (StopOperation(1), 4409)
    assert_names(close.reason, "a")


@pytest.mark.parametrize("frame", ["", "[", "[1]", "7", b"{}", "[" * 100_000])
def test_another_frame_than_a_message_closes(frame):
    (close,) = Conversation().handle_frame(frame)
    assert close.code == 4400


@pytest.mark.parametrize(
    "value", [r'"\ud800"', r'"\uDC00x"', "NaN", "-Infinity", r'{"\udfff": 1}', "1" * 5_000]
)
def test_a_value_that_no_answer_can_have_closes(value):
    (close,) = Conversation().handle_frame(f'{{"type": "ping", "payload": {{"a": {value}}}}}')
    assert close.code == 4400
    *_, close = open_conversation().handle_frame(
        f'{{"type": "subscribe", "id": "a", "payload": '
        f'{{"query": "{{x}}", "variables": {{"a": {value}}}}}}}'
    )
    assert close.code == 4400


def test_a_surrogate_pair_is_a_text_and_an_empty_operation_name_is_none():
    (pong,) = Conversation().handle_frame(r'{"type": "ping", "payload": {"a": "\ud83d\ude00"}}')
    assert pong == SendMessage({"type": "pong", "payload": {"a": "😀"}})
    (start,) = send(open_conversation(), ask_with(operationName=""))
    assert start.operation is None


def test_a_pong_has_the_payload_of_its_ping():
    answer = {"type": "pong", "payload": {"n": 1}}
    ping = {"type": "ping", "payload": {"n": 1}}
    assert send(Conversation(), ping) == [SendMessage(answer)]


def test_one_operation_too_many_is_an_error_and_the_others_continue():
    conversation = open_conversation(most=1)
    send(conversation, ASK)
    (refusal,) = send(conversation, ASK | {"id": "b"})
    assert (refusal.message["type"], refusal.message["id"]) == ("error", "b")
    assert refusal.message["payload"][0]["extensions"] == {"code": "TOO_MANY_SUBSCRIPTIONS"}
    assert conversation.running == (1,)


def test_a_reason_has_a_whole_position_or_none():
    reason = f"SUBSCRIBER_TOO_SLOW {'p' * 103}"
    assert format_slow_reason("SUBSCRIBER_TOO_SLOW", "p" * 103) == reason
    assert format_slow_reason("SUBSCRIBER_TOO_SLOW", "p" * 104) == "SUBSCRIBER_TOO_SLOW"


def test_a_reason_fits_a_close_frame():
    (close,) = Conversation().close(1013, "é" * 100)
    assert len(close.reason.encode()) <= MOST_REASON
    assert set(close.reason) == {"é"}


METHODS = {
    "admitted": "accept_connection",
    "waited": "expire_init",
    "ended": "complete_operation",
    "failed": "fail_operation",
    "refused": "refuse_connection",
    "next": "send_result",
}
steps = st.one_of(
    st.sampled_from(["init", "admitted", "refused", "waited", "ping", "pong", "bad"]),
    st.tuples(st.sampled_from(["ask", "complete"]), st.sampled_from("abc")),
    st.tuples(st.sampled_from(["next", "ended", "failed"]), st.integers(1, 4)),
)


@settings(max_examples=100)
@given(st.lists(steps, max_size=25))
def test_any_order_of_messages_keeps_the_protocol(order):
    """Compare with a model: who is asked, admitted, running, and how it closes."""
    conversation, model = Conversation(), Model()
    for step in order:
        assert list(map(describe, take_step(conversation, step))) == model.step(step)


def take_step(conversation, step):
    kind, argument = step if isinstance(step, tuple) else (step, None)
    messages = {
        "init": INIT,
        "ping": {"type": "ping"},
        "pong": {"type": "pong"},
        "bad": {"type": "x"},
        "ask": ASK | {"id": argument},
        "complete": {"type": "complete", "id": argument},
    }
    if kind in messages:
        return send(conversation, messages[kind])
    extra = {"next": ({},), "failed": ([],)}.get(kind, ())
    arguments = [] if argument is None else [argument, *extra]
    return getattr(conversation, METHODS[kind])(*arguments)


def describe(action):
    """Name an action as the model does."""
    match action:
        case CloseSocket(code=code):
            return code
        case SendMessage(message=message):
            return message["type"], message.get("id")
    return {StartOperation: "start", StopOperation: "stop", AdmitClient: "admit"}[type(action)]


class Model:
    def __init__(self):
        self.asked = self.admitted = self.closed = False
        self.ids = {}
        self.count = 0

    def close(self, code):
        stops = ["stop"] * len(self.ids)
        self.ids, self.closed = {}, True
        return [*stops, code]

    def step(self, step):
        kind, argument = step if isinstance(step, tuple) else (step, None)
        return [] if self.closed else getattr(self, f"on_{kind}")(argument)

    def on_init(self, _):
        if self.asked:
            return self.close(4429)
        self.asked = True
        return ["admit"]

    def on_admitted(self, _):
        self.admitted = True
        return [("connection_ack", None)]

    def on_refused(self, _):
        return self.close(4403)

    def on_waited(self, _):
        return [] if self.asked else self.close(4408)

    def on_ping(self, _):
        return [("pong", None)]

    def on_pong(self, _):
        return []

    def on_bad(self, _):
        return self.close(4400)

    def on_ask(self, id_):
        if not self.admitted:
            return self.close(4401)
        if id_ in self.ids.values():
            return self.close(4409)
        self.count += 1
        self.ids[self.count] = id_
        return ["start"]

    def on_complete(self, id_):
        serials = [serial for serial, each in self.ids.items() if each == id_]
        for serial in serials:
            del self.ids[serial]
        return ["stop"] * len(serials)

    def on_next(self, serial):
        return [("next", self.ids[serial])] if serial in self.ids else []

    def on_ended(self, serial):
        return [("complete", self.ids.pop(serial))] if serial in self.ids else []

    def on_failed(self, serial):
        return [("error", self.ids.pop(serial))] if serial in self.ids else []
