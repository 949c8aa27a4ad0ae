"""Services as users declare them, and the manifest that tells a runtime of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from durable_invocations import Context, Service, VirtualObject, Workflow, service_app
from durable_invocations.errors import ConfigError
from durable_invocations.protocol.services import HandlerKind
from durable_invocations.serving.declarations.manifest import build_manifest

SCHEMA = json.loads(
    (files("durable_invocations.protocol.pb") / "endpoint_manifest_schema.json").read_text()
)


class Lock:
    """Pydantic does not know it."""


@dataclass
class Order:
    id: int
    lines: list[str]


def shop():
    orders = Service("shop.Orders", documentation="Orders of the shop.", metadata={"team": "red"})

    @orders.handler
    async def place(ctx: Context, order: Order) -> int:
        """Place an order."""
        return order.id

    @orders.handler
    async def ping(ctx: Context) -> None:
        pass

    @orders.handler
    async def raw(ctx: Context, body: bytes) -> bytes:
        return body

    @orders.handler
    async def loose(ctx: Context, anything):
        return anything

    @orders.handler
    async def found(ctx: Context, order: Order | None = None) -> Any:
        return order

    cart = VirtualObject("Cart")

    @cart.handler
    async def add(ctx: Context, item: str) -> int:
        return 1

    @cart.shared
    async def items(ctx: Context) -> list[str]:
        return []

    signup = Workflow("Signup")

    @signup.run
    async def run(ctx: Context, email: str) -> bool:
        return True

    @signup.shared
    async def click(ctx: Context, secret: str) -> None:
        pass

    return orders, cart, signup


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("duplex", [False, True])
def test_the_manifest_follows_its_schema(version, duplex):
    told = build_manifest(shop(), version=version, duplex=duplex, protocols=(1, 3))
    # Its examples are an object, which the metaschema forbids: the schema itself is not checked.
    jsonschema.Draft202012Validator(SCHEMA).validate(told)
    assert told["protocolMode"] == ("BIDI_STREAM" if duplex else "REQUEST_RESPONSE")
    assert (told["minProtocolVersion"], told["maxProtocolVersion"]) == (1, 3)


def test_the_manifest_tells_kinds_inputs_and_outputs():
    told = build_manifest(shop(), version=2, duplex=True, protocols=(1, 3))
    orders, cart, signup = told["services"]
    assert [each["ty"] for each in told["services"]] == ["SERVICE", "VIRTUAL_OBJECT", "WORKFLOW"]
    place, ping, raw, loose, found = orders["handlers"]
    assert place["input"]["required"] is True
    assert place["input"]["jsonSchema"]["required"] == ["id", "lines"]
    assert place["output"]["jsonSchema"] == {"type": "integer"}
    assert "ty" not in place
    assert ping["input"] == {}
    assert ping["output"] == {"setContentTypeIfEmpty": False}
    assert raw["input"] == {"required": True, "contentType": "application/octet-stream"}
    assert loose["input"] == {"required": False, "contentType": "application/json"}
    assert found["input"]["required"] is False
    assert [each["ty"] for each in cart["handlers"]] == ["EXCLUSIVE", "SHARED"]
    assert [each["ty"] for each in signup["handlers"]] == ["WORKFLOW", "SHARED"]


def test_documentation_and_metadata_are_new_in_version_2():
    first, second = (
        build_manifest(shop(), version=each, duplex=False, protocols=(1, 3))["services"][0]
        for each in (1, 2)
    )
    assert "documentation" not in first
    assert "metadata" not in first
    assert second["documentation"] == "Orders of the shop."
    assert second["metadata"] == {"team": "red"}
    assert second["handlers"][0]["documentation"] == "Place an order."


def test_a_declared_handler_is_still_the_function():
    orders = Service("Orders")

    @orders.handler
    async def place(ctx: Context, order: Order) -> int:
        return order.id

    handler = orders.handlers["place"]
    assert handler.function is place
    assert handler.kind is HandlerKind.SHARED
    assert handler.line.endswith(f"test_declared_services.py, line {place.__code__.co_firstlineno}")
    assert handler.parse_arguments(b'{"id": 1, "lines": []}') == (Order(1, []),)
    with pytest.raises(ValueError, match="id: Field required"):
        handler.parse_arguments(b'{"lines": []}')


def test_an_optional_argument_may_be_left_out():
    orders = Service("Orders")

    @orders.handler
    async def found(ctx: Context, number: int = 7) -> int:
        return number

    assert orders.handlers["found"].parse_arguments(b"") == ()
    assert orders.handlers["found"].parse_arguments(b"8") == (8,)


async def look(ctx: Context) -> str:
    return "seen"


WAYS_TO_DECLARE = {
    "Service.handler": (Service, "handler", HandlerKind.SHARED),
    "VirtualObject.handler": (VirtualObject, "handler", HandlerKind.EXCLUSIVE),
    "VirtualObject.shared": (VirtualObject, "shared", HandlerKind.SHARED),
    "Workflow.run": (Workflow, "run", HandlerKind.WORKFLOW),
    "Workflow.shared": (Workflow, "shared", HandlerKind.SHARED),
}


@pytest.mark.parametrize("way", WAYS_TO_DECLARE)
def test_a_decorator_may_have_parentheses_and_a_name(way):
    made, decorator, kind = WAYS_TO_DECLARE[way]
    bare, called, named = made("Bare"), made("Called"), made("Named")
    assert getattr(bare, decorator)(look) is look
    assert getattr(called, decorator)()(look) is look
    assert getattr(named, decorator)(name="look_again")(look) is look
    assert [*bare.handlers, *called.handlers, *named.handlers] == ["look", "look", "look_again"]
    every = [each for one in (bare, called, named) for each in one.handlers.values()]
    assert {(each.kind, each.function) for each in every} == {(kind, look)}
    assert named.handlers["look_again"].called == "Named.look_again"


def two_handlers():
    service = Service("Orders")
    for _ in range(2):

        @service.handler
        async def place(ctx: Context) -> None:
            pass


def not_async():
    @Service("Orders").handler
    def place(ctx: Context) -> None:
        pass


def not_async_with_parentheses():
    @VirtualObject("Cart").shared()
    def look(ctx: Context) -> None:
        pass


def no_name():
    @Service("Orders").handler(name="")
    async def place(ctx: Context) -> None:
        pass


def two_of_one_given_name():
    orders = Service("Orders")
    orders.handler(look)
    orders.handler(name="look")(look)


def two_runs_with_parentheses():
    flow = Workflow("Signup")
    flow.run()(look)
    flow.run(name="again")(look)


def many_arguments():
    @Service("Orders").handler
    async def place(ctx: Context, one: int, two: int) -> None:
        pass


def two_runs():
    flow = Workflow("Signup")

    @flow.run
    async def first(ctx: Context) -> None:
        pass

    @flow.run
    async def second(ctx: Context) -> None:
        pass


def no_form():
    @Service("Orders").handler
    async def place(ctx: Context, what: Lock) -> None:
        pass


def no_form_of_the_result():
    @Service("Orders").handler
    async def place(ctx: Context) -> Lock:
        pass


def no_such_type():
    class Local:
        pass

    @Service("Orders").handler
    async def place(ctx: Context, what: Local) -> None:
        pass


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (no_form, "the argument of Orders.place has a type without a JSON schema"),
        (no_form_of_the_result, "the result of Orders.place has a type without a JSON schema"),
        (no_such_type, "place cannot be read: name 'Local' is not defined"),
        (lambda: Service("no spaces"), "'no spaces' is invalid"),
        (two_handlers, "Orders has two handlers named 'place'"),
        (not_async, "Orders.place is not async"),
        (not_async_with_parentheses, "Cart.look is not async"),
        (no_name, "the handler name '' of Orders is invalid"),
        (two_of_one_given_name, "Orders has two handlers named 'look'"),
        (lambda: Service("Orders").handler("place"), "'place' is not a function"),
        (two_runs_with_parentheses, "Signup has two functions under @run"),
        (many_arguments, "Orders.place must take its context, and at most one argument"),
        (two_runs, "Signup has two functions under @run"),
        (lambda: service_app(Workflow("Signup")), "Signup has no function under @run"),
    ],
)
def test_what_cannot_be_served_is_refused_where_it_is_declared(declare, told):
    with pytest.raises(ConfigError, match=told):
        declare()
