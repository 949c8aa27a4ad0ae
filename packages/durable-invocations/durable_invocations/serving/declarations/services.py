"""What users declare: services, virtual objects and workflows, with their handlers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter, getdoc, iscoroutinefunction, signature
from typing import Any

from durable_invocations.errors import ConfigError
from durable_invocations.protocol.services import HandlerKind, ServiceKind
from durable_invocations.serving.declarations.decorators import Decorator, Function, make_decorator
from durable_invocations.serving.declarations.serde import (
    JSON,
    Serde,
    format_unreadable,
    get_hints,
    get_serde,
)

# Both patterns are from the manifest's schema.
_SERVICE = re.compile(r"([a-zA-Z]|_[a-zA-Z0-9])[a-zA-Z0-9._-]*")
_HANDLER = re.compile(r"([a-zA-Z]|_[a-zA-Z0-9])[a-zA-Z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class DeclaredHandler:
    """One handler, as its function's signature declares it."""

    service: str
    name: str
    kind: HandlerKind
    function: Function
    input: Serde | None
    """None for a handler that takes only its context."""
    optional: bool
    """Whether the argument may be left out."""
    output: Serde
    documentation: str = ""

    @property
    def qualified_name(self) -> str:
        return f"{self.service}.{self.name}"

    @property
    def line(self) -> str:
        """Where it is defined, as `file, line n`."""
        code = self.function.__code__
        return f"{code.co_filename}, line {code.co_firstlineno}"

    def parse_arguments(self, body: bytes) -> tuple[Any, ...]:
        """The arguments after the context. Raises ValueError if the body does not fit."""
        if self.input is None or (self.optional and not body):
            return ()
        return (self.input.loads(body),)


class _BaseService:
    """What services of each kind have in common."""

    kind: ServiceKind

    def __init__(
        self, name: str, *, documentation: str = "", metadata: Mapping[str, str] | None = None
    ) -> None:
        if _SERVICE.fullmatch(name) is None:
            raise ConfigError(
                f"the service name {name!r} is invalid; begin with a letter and continue with "
                "letters, digits, '.', '_' and '-'"
            )
        self.name = name
        self.documentation = documentation
        self.metadata = dict(metadata or {})
        self.handlers: dict[str, DeclaredHandler] = {}

    def check(self) -> None:
        """Raise ConfigError unless it can be served."""

    def _make_decorator(self, kind: HandlerKind) -> Decorator:
        return make_decorator(lambda function, name: self._add_handler(function, kind, name))

    def _add_handler(self, function: Function, kind: HandlerKind, name: str | None) -> None:
        handler = _build_handler(self.name, function, kind, name)
        if handler.name in self.handlers:
            raise ConfigError(f"{self.name} has two handlers named {handler.name!r}")
        self.handlers[handler.name] = handler


class Service(_BaseService):
    """Handlers without keys or state: any number of invocations run concurrently."""

    kind = ServiceKind.SERVICE

    @property
    def handler(self) -> Decorator:
        """Declare a handler, named as the function or by the `name` in parentheses."""
        return self._make_decorator(HandlerKind.SHARED)


class VirtualObject(_BaseService):
    """Handlers with a key, and state of that key."""

    kind = ServiceKind.OBJECT

    @property
    def handler(self) -> Decorator:
        """Declare an exclusive handler: invocations of one key run one at a time, in order."""
        return self._make_decorator(HandlerKind.EXCLUSIVE)

    @property
    def shared(self) -> Decorator:
        """Declare a handler that runs alongside others of its key, and only reads its state."""
        return self._make_decorator(HandlerKind.SHARED)


class Workflow(_BaseService):
    """A handler that runs once for each key, and others that query and signal it."""

    kind = ServiceKind.WORKFLOW

    @property
    def run(self) -> Decorator:
        """Declare the workflow itself."""
        return self._make_decorator(HandlerKind.WORKFLOW)

    @property
    def shared(self) -> Decorator:
        """Declare a handler that may run at any time, even after the workflow has ended."""
        return self._make_decorator(HandlerKind.SHARED)

    def _add_handler(self, function: Function, kind: HandlerKind, name: str | None) -> None:
        if kind is HandlerKind.WORKFLOW and self._has_run():
            raise ConfigError(f"the workflow {self.name} has two functions under @run; keep one")
        super()._add_handler(function, kind, name)

    def _has_run(self) -> bool:
        return any(handler.kind is HandlerKind.WORKFLOW for handler in self.handlers.values())

    def check(self) -> None:
        if not self._has_run():
            raise ConfigError(
                f"the workflow {self.name} has no function under @run; "
                "add one, or make it a virtual object"
            )


AnyService = Service | VirtualObject | Workflow


def _build_handler(
    service: str, function: Function, kind: HandlerKind, name_override: str | None
) -> DeclaredHandler:
    name = function.__name__ if name_override is None else name_override
    if _HANDLER.fullmatch(name) is None:
        raise ConfigError(
            f"the handler name {name!r} of {service} is invalid; begin with a letter and continue "
            "with letters, digits and '_'"
        )
    if not iscoroutinefunction(function):
        raise ConfigError(f"the handler {service}.{name} is not async; write `async def`")
    argument = _find_argument(f"{service}.{name}", function)
    try:
        hints = get_hints(function)
    except NameError as error:
        raise ConfigError(format_unreadable(function, error)) from None
    handler = DeclaredHandler(
        service=service,
        name=name,
        kind=kind,
        function=function,
        input=None if argument is None else get_serde(hints.get(argument.name, Any)),
        optional=argument is not None and argument.default is not Parameter.empty,
        output=get_serde(hints["return"]) if "return" in hints else JSON,
        documentation=getdoc(function) or "",
    )
    _check_types(handler)
    return handler


def _check_types(handler: DeclaredHandler) -> None:
    """Raise ConfigError for types without a JSON schema, before a runtime requests them."""
    for label, serde in (("argument", handler.input), ("result", handler.output)):
        try:
            _ = serde and serde.schema()
        except Exception as error:
            raise ConfigError(
                f"the {label} of {handler.qualified_name} has a type without a JSON schema: "
                f"{str(error).splitlines()[0]} Give plain types, dataclasses or pydantic models, "
                "or bytes."
            ) from error


def _find_argument(called: str, function: Function) -> Parameter | None:
    """The parameter after the context, if there is one."""
    positional = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
    parameters = list(signature(function).parameters.values())
    if len(parameters) not in {1, 2} or not all(
        parameter.kind in positional for parameter in parameters
    ):
        raise ConfigError(
            f"the handler {called} must take its context, and at most one argument; put several "
            "values into one dict, dataclass or model"
        )
    return parameters[1] if len(parameters) > 1 else None
