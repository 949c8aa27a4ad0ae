"""What the stack's commands print: progress while it comes up, addresses, a status table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console

from iscp_dagster.local.services.state import Condition, ServiceState, StackState

_COLOURS = {Condition.READY: "green", Condition.EXTERNAL: "green", Condition.DOWN: "red"}


def _make_console() -> Console:
    # An address that is cut in two cannot be clicked or copied.
    return Console(soft_wrap=True, highlight=False)


def print_line(text: str) -> None:
    """Print a line without markup."""
    _make_console().print(text, markup=False)


@contextmanager
def show_progress(what: str) -> Iterator[None]:
    """Show that something is under way: a spinner on a terminal, a line elsewhere."""
    console = _make_console()
    if not console.is_terminal:
        print_line(f"{what} …")
        yield
        return
    with console.status(f"{what} …"):
        yield


class StartUp:
    """Shows services coming up: one changing line on a terminal, a line per change elsewhere."""

    def __init__(self) -> None:
        self._console = _make_console()
        self._status = self._console.status("Starting …") if self._console.is_terminal else None
        self._conditions: dict[str, Condition] = {}

    def __enter__(self) -> Self:
        if self._status:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the changing line."""
        if self._status:
            self._status.stop()

    def update(self, now: StackState) -> None:
        """Show a state; print no line for a service whose condition is unchanged."""
        if self._status:
            self._status.update(format_progress(now.services))
            return
        for service in now.services:
            if self._conditions.get(service.name) is not service.condition:
                self._conditions[service.name] = service.condition
                print_line(f"{service.name}: {service.condition.value}")


def format_progress(services: Iterable[ServiceState]) -> str:
    """Name the services by condition, in markup; count the ready ones, to fit into 80 columns."""
    names: dict[Condition, list[str]] = {}
    for service in services:
        names.setdefault(service.condition, []).append(service.name)
    ready = len(names.pop(Condition.READY, ()))
    parts = [
        f"[{_get_colour(condition)}]{condition.value}[/] {' '.join(names[condition])}"
        for condition in names
    ]
    if ready:
        parts.insert(0, f"{ready} [{_get_colour(Condition.READY)}]ready[/]")
    return "  ".join(parts)


def _get_colour(condition: Condition) -> str:
    return _COLOURS.get(condition, "yellow")


def print_addresses(now: StackState) -> None:
    """Print each service's address, the home, and warnings, such as about broken code."""
    for service in now.services:
        if service.address:
            print_line(f"  {service.name:<12}{service.address}")
    print_line(f"  {'home':<12}{now.home}")
    for service in now.services:
        if service.note:
            print_line(f"Warning: {service.note}")


def print_table(now: StackState) -> None:
    """Print every service's condition, address, process and log file."""
    console = _make_console()
    for service in now.services:
        colour = _get_colour(service.condition)
        restarts = f", restarts: {service.restarts}" if service.restarts else ""
        process = f"pid {service.pid}{restarts}" if service.pid else ""
        place = "  ".join(filter(None, (service.address, process)))
        console.print(f"  {service.name:<12}[{colour}]{service.condition.value:<12}[/]{place}")
        if service.log:
            console.print(f"  {'':<12}{'log':<12}{service.log}", markup=False)
        if service.note:
            print_line(f"Warning: {service.note}")
    print_line(f"  {'home':<22}{now.home}")
