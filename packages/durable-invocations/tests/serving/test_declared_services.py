"""Services as users declare them, and their manifest."""

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
from runtime_support.errors import raises_naming

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
    manifest = build_manifest(shop(), version=version, duplex=duplex, protocols=(1, 3))
    # Its examples are an object, which the metaschema forbids: the schema itself is not checked.
    jsonschema.Draft202012Validator(SCHEMA).validate(manifest)
    assert manifest["protocolMode"] == ("BIDI_STREAM" if duplex else "REQUEST_RESPONSE")
    assert (manifest["minProtocolVersion"], manifest["maxProtocolVersion"]) == (1, 3)


def test_the_manifest_has_kinds_inputs_and_outputs():
    services = build_manifest(shop(), version=2, duplex=True, protocols=(1, 3))["services"]
    orders, cart, signup = services
    assert [service["ty"] for service in services] == ["SERVICE", "VIRTUAL_OBJECT", "WORKFLOW"]
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
    assert [handler["ty"] for handler in cart["handlers"]] == ["EXCLUSIVE", "SHARED"]
    assert [handler["ty"] for handler in signup["handlers"]] == ["WORKFLOW", "SHARED"]


def test_documentation_and_metadata_are_new_in_version_2():
    first, second = (
        build_manifest(shop(), version=version, duplex=False, protocols=(1, 3))["services"][0]
        for version in (1, 2)
    )
    assert not {"documentation", "metadata"} & first.keys()
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
    with raises_naming(ValueError, "id"):
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
    kind_of_service, decorator, kind = WAYS_TO_DECLARE[way]
    bare, called, named = map(kind_of_service, ("Bare", "Called", "Named"))
    assert getattr(bare, decorator)(look) is look
    assert getattr(called, decorator)()(look) is look
    assert getattr(named, decorator)(name="look_again")(look) is look
    assert [*bare.handlers, *called.handlers, *named.handlers] == ["look", "look", "look_again"]
    for service in (bare, called, named):
        (handler,) = service.handlers.values()
        assert (handler.kind, handler.function) == (kind, look)
    assert named.handlers["look_again"].qualified_name == "Named.look_again"


async def takes_lock(ctx: Context, lock: Lock) -> None:
    pass


async def returns_lock(ctx: Context) -> Lock:
    pass


async def takes_two(ctx: Context, one: int, two: int) -> None:
    pass


async def takes_unknown(ctx: Context, value: Unknown) -> None:  # noqa: F821
    pass


def not_async(ctx: Context) -> None:
    pass


def declare(*decorators):
    """Declare the handler `look` with each of these."""
    for decorate in decorators:
        decorate(look)


ORDERS, FLOW = Service("Orders"), Workflow("Signup")


@pytest.mark.parametrize(
    ("declare_wrong", "values"),
    [
        (lambda: ORDERS.handler(takes_lock), ["argument", "Orders.takes_lock"]),
        (lambda: ORDERS.handler(returns_lock), ["result", "Orders.returns_lock"]),
        (lambda: ORDERS.handler(takes_unknown), ["takes_unknown", "'Unknown'"]),
        (lambda: ORDERS.handler(takes_two), ["Orders.takes_two", "one argument"]),
        (lambda: ORDERS.handler(not_async), ["Orders.not_async", "async def"]),
        (lambda: VirtualObject("Cart").shared()(not_async), ["Cart.not_async", "async def"]),
        (lambda: ORDERS.handler("place"), ["'place'", "function"]),
        (lambda: ORDERS.handler(name="")(look), ["handler name", "''", "Orders"]),
        (lambda: Service("no spaces"), ["service name", "'no spaces'"]),
        (lambda: declare(*[Service("Orders").handler] * 2), ["Orders", "two handlers", "'look'"]),
        (
            lambda: declare((service := Service("Orders")).handler, service.handler(name="look")),
            ["Orders", "two handlers", "'look'"],
        ),
        (lambda: declare(*[Workflow("Signup").run] * 2), ["Signup", "two functions", "@run"]),
        (
            lambda: declare((flow := Workflow("Signup")).run(), flow.run(name="again")),
            ["Signup", "two functions", "@run"],
        ),
        (lambda: service_app(FLOW), ["Signup", "no function", "@run"]),
    ],
)
def test_an_invalid_declaration_is_refused(declare_wrong, values):
    with raises_naming(ConfigError, *values):
        declare_wrong()
