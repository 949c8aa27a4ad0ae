"""Handlers that become exclusive, or shared, while invocations of them wait to begin."""

import pytest

from durable_invocations.protocol.services import ServiceKind
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.deployments import (
    Deployment,
    RegisteredHandler,
    RegisteredService,
)
from runtime_support.runtimes.manual_runtime import EXCLUSIVE, FIRST, SERVICES, SHARED

SECOND = Deployment(id="second", url="http://127.0.0.1:9081")
LATER = 5_000


def become(desk, *, add=EXCLUSIVE, look=SHARED, deployment=FIRST):
    """Deploy the object with handlers of these kinds."""
    handlers = (RegisteredHandler(name="add", kind=add), RegisteredHandler(name="look", kind=look))
    cart = RegisteredService(name="Cart", kind=ServiceKind.OBJECT, handlers=handlers)
    desk.do(op.Register(deployment=deployment, services=(SERVICES[0], cart, SERVICES[2])))


def in_turn(desk):
    """Claim and end whatever is ready, until nothing is: who was driven together."""
    turns = []
    while claimed := desk.claim():
        turns.append([each.id for each in claimed])
        for each in claimed:
            desk.finish(each)
    return turns


@pytest.mark.parametrize("deployment", [FIRST, SECOND])
def test_what_waits_at_a_handler_that_becomes_exclusive_goes_one_by_one(desk, deployment):
    looks = [desk.submit("Cart/k/look").id for _ in range(2)]
    first = desk.submit("Cart/k/add").id
    other = desk.submit("Cart/l/look").id
    become(desk, look=EXCLUSIVE, deployment=deployment)
    last = desk.submit("Cart/k/look").id
    assert in_turn(desk) == [[first, other], [looks[0]], [looks[1]], [last]]


def test_what_is_delayed_arrives_as_its_handler_is_by_then(desk):
    later = [desk.submit("Cart/k/look", at=desk.now + LATER).id for _ in range(2)]
    become(desk, look=EXCLUSIVE)
    assert desk.claim() == ()
    desk.fire(LATER / 1_000)
    assert in_turn(desk) == [[later[0]], [later[1]]]


def test_what_waits_at_a_handler_that_becomes_shared_goes_at_once(desk):
    holder = desk.begin("Cart/k/add")
    waiting = [desk.submit("Cart/k/add").id for _ in range(2)]
    become(desk, add=SHARED)
    assert in_turn(desk) == [waiting]
    desk.finish(holder)
    become(desk)
    again = [desk.submit("Cart/k/add").id for _ in range(2)]
    assert in_turn(desk) == [[again[0]], [again[1]]]


def test_what_has_begun_keeps_its_key_until_it_ends(desk):
    holder = desk.begin("Cart/k/add")
    become(desk, add=SHARED, look=EXCLUSIVE)
    look = desk.submit("Cart/k/look").id
    assert desk.claim() == ()
    desk.finish(holder)
    assert in_turn(desk) == [[look]]


def test_a_handler_that_was_gone_meanwhile_may_come_back_as_exclusive(desk):
    looks = [desk.submit("Cart/k/look").id for _ in range(2)]
    cart = RegisteredService(
        name="Cart", kind=ServiceKind.OBJECT, handlers=(RegisteredHandler(name="new"),)
    )
    desk.do(op.Register(deployment=FIRST, services=(cart,)))
    become(desk, look=EXCLUSIVE)
    assert in_turn(desk) == [[looks[0]], [looks[1]]]
