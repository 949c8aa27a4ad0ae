"""Handlers that become exclusive, or shared, while invocations of them wait."""

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


@pytest.mark.parametrize("deployment", [FIRST, SECOND])
def test_invocations_of_a_handler_that_becomes_exclusive_begin_one_by_one(desk, deployment):
    looks = [desk.submit("Cart/k/look").id for _ in range(2)]
    first = desk.submit("Cart/k/add").id
    other = desk.submit("Cart/l/look").id
    become(desk, look=EXCLUSIVE, deployment=deployment)
    last = desk.submit("Cart/k/look").id
    assert desk.finish_all() == [[first, other], [looks[0]], [looks[1]], [last]]


def test_a_delayed_invocation_begins_as_its_handler_is_by_then(desk):
    later = [desk.submit("Cart/k/look", at=desk.now + LATER).id for _ in range(2)]
    become(desk, look=EXCLUSIVE)
    assert desk.claim() == ()
    desk.fire(LATER / 1_000)
    assert desk.finish_all() == [[later[0]], [later[1]]]


def test_invocations_of_a_handler_that_becomes_shared_begin_at_once(desk):
    holder = desk.begin("Cart/k/add")
    waiting = [desk.submit("Cart/k/add").id for _ in range(2)]
    become(desk, add=SHARED)
    assert desk.finish_all() == [waiting]
    desk.finish(holder)
    become(desk)
    again = [desk.submit("Cart/k/add").id for _ in range(2)]
    assert desk.finish_all() == [[again[0]], [again[1]]]


def test_an_invocation_that_has_begun_keeps_its_key_until_it_ends(desk):
    holder = desk.begin("Cart/k/add")
    become(desk, add=SHARED, look=EXCLUSIVE)
    look = desk.submit("Cart/k/look").id
    assert desk.claim() == ()
    desk.finish(holder)
    assert desk.finish_all() == [[look]]


def test_a_handler_may_disappear_and_come_back_as_exclusive(desk):
    looks = [desk.submit("Cart/k/look").id for _ in range(2)]
    cart = RegisteredService(
        name="Cart", kind=ServiceKind.OBJECT, handlers=(RegisteredHandler(name="new"),)
    )
    desk.do(op.Register(deployment=FIRST, services=(cart,)))
    become(desk, look=EXCLUSIVE)
    assert desk.finish_all() == [[looks[0]], [looks[1]]]
