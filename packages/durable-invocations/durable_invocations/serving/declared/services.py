"""What users declare: services, virtual objects and workflows, with their handlers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter, getdoc, iscoroutinefunction, signature
from typing import Any

from durable_invocations.errors import ConfigError
from durable_invocations.protocol.services import HandlerKind, ServiceKind
from durable_invocations.serving.declared.decorators import Decorator, Function, decorator
from durable_invocations.serving.declared.serde import JSON, Serde, hints_of, serde_for, unreadable

# Both patterns are the manifest schema's.
_SERVICE = re.compile(r"([a-zA-Z]|_[a-zA-Z0-9])[a-zA-Z0-9._-]*")
_HANDLER = re.compile(r"([a-zA-Z]|_[a-zA-Z0-9])[a-zA-Z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class Handler:
    """One handler, as its function's signature declares it."""

    service: str
    name: str
    kind: HandlerKind
    function: Function
    input: Serde | None
    """None for a handler that takes its context alone."""
    optional: bool
    """Whether the argument may be left out."""
    output: Serde
    documentation: str = ""

    @property
    def called(self) -> str:
        return f"{self.service}.{self.name}"

    @property
    def line(self) -> str:
        """Where it is defined, as `file, line n`."""
        code = self.function.__code__
        return f"{code.co_filename}, line {code.co_firstlineno}"

    def arguments(self, body: bytes) -> tuple[Any, ...]:
        """What the function gets after its context. Raises ValueError if the body does not fit."""
        if self.input is None or (self.optional and not body):
            return ()
        return (self.input.loads(body),)


class _Declared:
    """What services of each kind have in common."""

    kind: ServiceKind

    def __init__(
        self, name: str, *, documentation: str = "", metadata: Mapping[str, str] | None = None
    ) -> None:
        if _SERVICE.fullmatch(name) is None:
            raise ConfigError(
                f"the service name {name!r} is invalid; begin with a letter and go on with "
                "letters, digits, '.', '_' and '-'"
            )
        self.name = name
        self.documentation = documentation
        self.metadata = dict(metadata or {})
        self.handlers: dict[str, Handler] = {}

    def check(self) -> None:
        """Raise ConfigError unless it can be served as it is."""

    def _declares(self, kind: HandlerKind) -> Decorator:
        return decorator(lambda function, name: self._add(function, kind, name))

    def _add(self, function: Function, kind: HandlerKind, name: str | None) -> None:
        handler = _handler(self.name, function, kind, name)
        if handler.name in self.handlers:
            raise ConfigError(f"{self.name} has two handlers of the name {handler.name!r}")
        self.handlers[handler.name] = handler


class Service(_Declared):
    """Handlers without keys or state: any number of invocations run side by side."""

    kind = ServiceKind.SERVICE

    @property
    def handler(self) -> Decorator:
        """Declare a handler of the function's name, or of the `name` in parentheses."""
        return self._declares(HandlerKind.SHARED)


class VirtualObject(_Declared):
    """Handlers with a key, and state of that key."""

    kind = ServiceKind.OBJECT

    @property
    def handler(self) -> Decorator:
        """Declare an exclusive handler: invocations of one key run one at a time, in order."""
        return self._declares(HandlerKind.EXCLUSIVE)

    @property
    def shared(self) -> Decorator:
        """Declare a handler that runs beside others of its key, and only reads the state."""
        return self._declares(HandlerKind.SHARED)


class Workflow(_Declared):
    """A handler that runs once for each key, and others that look at it and talk to it."""

    kind = ServiceKind.WORKFLOW

    @property
    def run(self) -> Decorator:
        """Declare the workflow itself."""
        return self._declares(HandlerKind.WORKFLOW)

    @property
    def shared(self) -> Decorator:
        """Declare a handler that may run at any time, also after the workflow has ended."""
        return self._declares(HandlerKind.SHARED)

    def _add(self, function: Function, kind: HandlerKind, name: str | None) -> None:
        if kind is HandlerKind.WORKFLOW and self._runs():
            raise ConfigError(f"the workflow {self.name} has two functions under @run; keep one")
        super()._add(function, kind, name)

    def _runs(self) -> bool:
        return any(each.kind is HandlerKind.WORKFLOW for each in self.handlers.values())

    def check(self) -> None:
        if not self._runs():
            raise ConfigError(
                f"the workflow {self.name} has no function under @run, which is what it does; "
                "add one, or make it a virtual object"
            )


AnyService = Service | VirtualObject | Workflow


def _handler(service: str, function: Function, kind: HandlerKind, given: str | None) -> Handler:
    name = function.__name__ if given is None else given
    if _HANDLER.fullmatch(name) is None:
        raise ConfigError(
            f"the handler name {name!r} of {service} is invalid; begin with a letter and go on "
            "with letters, digits and '_'"
        )
    if not iscoroutinefunction(function):
        raise ConfigError(f"the handler {service}.{name} is not async; write `async def`")
    argument = _argument(f"{service}.{name}", function)
    try:
        hints = hints_of(function)
    except NameError as error:
        raise ConfigError(unreadable(function, error)) from None
    handler = Handler(
        service=service,
        name=name,
        kind=kind,
        function=function,
        input=None if argument is None else serde_for(hints.get(argument.name, Any)),
        optional=argument is not None and argument.default is not Parameter.empty,
        output=serde_for(hints["return"]) if "return" in hints else JSON,
        documentation=getdoc(function) or "",
    )
    _check(handler)
    return handler


def _check(handler: Handler) -> None:
    """Raise ConfigError for types that JSON has no form for, before a runtime asks for them."""
    for what, serde in (("argument", handler.input), ("result", handler.output)):
        try:
            _ = serde and serde.schema()
        except Exception as error:
            raise ConfigError(
                f"the {what} of {handler.called} has a type without a form in JSON: "
                f"{str(error).splitlines()[0]} Give plain types, dataclasses or pydantic models, "
                "or bytes."
            ) from error


def _argument(called: str, function: Function) -> Parameter | None:
    """The parameter after the context, if there is one."""
    positional = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
    parameters = list(signature(function).parameters.values())
    if len(parameters) not in {1, 2} or not all(each.kind in positional for each in parameters):
        raise ConfigError(
            f"the handler {called} must take its context, and at most one argument; put several "
            "values into one dict, dataclass or model"
        )
    return parameters[1] if len(parameters) > 1 else None
