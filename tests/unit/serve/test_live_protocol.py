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

ASK = {"type": "subscribe", "id": "a", "payload": {"query": "subscription { x }"}}


def said(conversation, message):
    return conversation.handle_frame(json.dumps(message))


def opened(**caps):
    conversation = Conversation(**caps)
    assert said(conversation, {"type": "connection_init"}) == [AdmitClient({})]
    assert conversation.accept_connection() == [SendMessage({"type": "connection_ack"})]
    return conversation


def test_an_operation_tells_its_results_and_ends():
    conversation = opened()
    (start,) = said(conversation, ASK)
    assert start == StartOperation(
        serial=1, query="subscription { x }", variables=None, operation=None
    )
    told = {"type": "next", "id": "a", "payload": {"data": {"x": 1}}}
    assert conversation.send_result(1, {"data": {"x": 1}}) == [SendMessage(told)]
    assert conversation.complete_operation(1) == [SendMessage({"type": "complete", "id": "a"})]
    assert conversation.send_result(1, {"data": {}}) == []


def test_an_id_can_be_used_again_and_late_results_of_the_first_are_dropped():
    conversation = opened()
    said(conversation, ASK)
    assert said(conversation, {"type": "complete", "id": "a"}) == [StopOperation(1)]
    (again,) = said(conversation, ASK)
    assert again.serial == 2
    assert conversation.send_result(1, {"data": {}}) == conversation.fail_operation(1, []) == []
    assert said(conversation, {"type": "complete", "id": "unknown"}) == []


def test_a_failed_operation_leaves_the_others():
    conversation = opened()
    said(conversation, ASK)
    said(conversation, ASK | {"id": "b"})
    error = {"type": "error", "id": "a", "payload": [{"message": "no"}]}
    assert conversation.fail_operation(1, [{"message": "no"}]) == [SendMessage(error)]
    assert conversation.running == (2,)


@pytest.mark.parametrize(
    ("before", "message", "code", "reason"),
    [
        ([], ASK, 4401, "Unauthorized"),
        (["init"], {"type": "connection_init"}, 4429, "Too many initialisation requests"),
        (["init", "admit", "ask"], ASK, 4409, "Subscriber for a already exists"),
        ([], {"type": "nonsense"}, 4400, "Unknown message type 'nonsense'"),
        ([], {"type": "ping", "payload": 3}, 4400, "The message's payload is not an object"),
        (["init", "admit"], ASK | {"id": ""}, 4400, "The message's id is not a text of 1 to"),
        (["init", "admit"], ASK | {"payload": {}}, 4400, "The payload's query is not a text"),
        (
            ["init", "admit"],
            ASK | {"payload": {"query": "{x}", "variables": [1]}},
            4400,
            "The payload's variables and extensions are objects or null",
        ),
        (
            ["init", "admit"],
            ASK | {"payload": {"query": "{x}", "operationName": 1}},
            4400,
            "The payload's operationName is not a text",
        ),
    ],
)
def test_what_the_protocol_forbids_closes_with_its_code(before, message, code, reason):
    conversation = Conversation()
    for step in before:
        if step == "admit":
            conversation.accept_connection()
        else:
            said(conversation, {"type": "connection_init"} if step == "init" else ASK)
    *stops, close = said(conversation, message)
    assert (close.code, close.reason[: len(reason)]) == (code, reason)
    assert stops == [StopOperation(1)] * ("ask" in before)
    assert (
        said(conversation, ASK)
        == conversation.accept_connection()
        == conversation.expire_init()
        == []
    )


@pytest.mark.parametrize("frame", ["", "[", "[1]", "7", b"{}", "[" * 100_000])
def test_a_frame_that_is_no_message_closes(frame):
    (close,) = Conversation().handle_frame(frame)
    assert close.code == 4400


@pytest.mark.parametrize(
    "value", [r'"\ud800"', r'"\uDC00x"', "NaN", "-Infinity", r'{"\udfff": 1}', "1" * 5_000]
)
def test_what_could_not_be_written_in_an_answer_closes(value):
    (close,) = Conversation().handle_frame(f'{{"type": "ping", "payload": {{"a": {value}}}}}')
    assert close.code == 4400
    conversation = opened()
    *_, close = conversation.handle_frame(
        f'{{"type": "subscribe", "id": "a", "payload": '
        f'{{"query": "{{x}}", "variables": {{"a": {value}}}}}}}'
    )
    assert close.code == 4400


def test_a_whole_pair_is_a_text_and_an_empty_operation_name_is_none():
    (pong,) = Conversation().handle_frame(r'{"type": "ping", "payload": {"a": "\ud83d\ude00"}}')
    assert pong == SendMessage({"type": "pong", "payload": {"a": "😀"}})
    (start,) = said(opened(), ASK | {"payload": {"query": "{x}", "operationName": ""}})
    assert start.operation is None


def test_connection_init_is_waited_for():
    assert opened().expire_init() == []
    asked = Conversation()
    said(asked, {"type": "connection_init"})
    assert asked.expire_init() == []
    assert Conversation().expire_init() == [CloseSocket(4408, "Connection initialisation timeout")]


def test_a_refused_connection_is_forbidden():
    conversation = Conversation()
    said(conversation, {"type": "connection_init", "payload": {"token": "wrong"}})
    assert conversation.refuse_connection() == [CloseSocket(4403, "Forbidden")]


def test_ping_is_answered_at_any_time():
    conversation = Conversation()
    assert said(conversation, {"type": "ping"}) == [SendMessage({"type": "pong"})]
    answer = {"type": "pong", "payload": {"n": 1}}
    assert said(conversation, {"type": "ping", "payload": {"n": 1}}) == [SendMessage(answer)]
    assert said(conversation, {"type": "pong"}) == []


def test_one_operation_too_many_is_told_so_and_the_others_go_on():
    conversation = opened(most=1)
    said(conversation, ASK)
    (told,) = said(conversation, ASK | {"id": "b"})
    assert (told.message["type"], told.message["id"]) == ("error", "b")
    assert told.message["payload"][0]["extensions"] == {"code": "TOO_MANY_SUBSCRIPTIONS"}
    assert conversation.running == (1,)


def test_a_position_is_whole_in_a_reason_or_not_there():
    assert (
        format_slow_reason("SUBSCRIBER_TOO_SLOW", "p" * 103) == f"SUBSCRIBER_TOO_SLOW {'p' * 103}"
    )
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
        assert shown(done(conversation, step)) == model.step(step)


def done(conversation, step):
    kind, argument = step if isinstance(step, tuple) else (step, None)
    messages = {
        "init": {"type": "connection_init"},
        "ping": {"type": "ping"},
        "pong": {"type": "pong"},
        "bad": {"type": "x"},
        "ask": ASK | {"id": argument},
        "complete": {"type": "complete", "id": argument},
    }
    if kind in messages:
        return said(conversation, messages[kind])
    extra = {"next": ({},), "failed": ([],)}.get(kind, ())
    return getattr(conversation, METHODS.get(kind, kind))(
        *([] if argument is None else [argument, *extra])
    )


def shown(actions):
    """Name each action as the model does."""
    names = {StartOperation: "start", StopOperation: "stop", AdmitClient: "admit"}
    return [
        each.code if isinstance(each, CloseSocket)
        else (each.message["type"], each.message.get("id")) if isinstance(each, SendMessage)
        else names[type(each)]
        for each in actions
    ]  # fmt: skip


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
        gone = [serial for serial, each in self.ids.items() if each == id_]
        for serial in gone:
            del self.ids[serial]
        return ["stop"] * len(gone)

    def on_next(self, serial):
        return [("next", self.ids[serial])] if serial in self.ids else []

    def on_ended(self, serial):
        return [("complete", self.ids.pop(serial))] if serial in self.ids else []

    def on_failed(self, serial):
        return [("error", self.ids.pop(serial))] if serial in self.ids else []
