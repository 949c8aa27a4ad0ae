"""`iscp invocations`: what was invoked, how far it is, and what becomes of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from iscp_dagster.cli.invocations import options
from iscp_dagster.cli.invocations.serve import serve
from iscp_dagster.cli.jobs.options import AsJson
from iscp_dagster.cli.parts.group import Group

if TYPE_CHECKING:
    from durable_invocations.client.client import Client

invocations = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    cls=Group,
    help="Serve, list, show, cancel and end durable invocations.",
)
invocations.command()(serve)


@invocations.command("list")
def list_invocations(
    *,
    status: options.OneStatus = None,
    service: options.OneService = None,
    handler: options.OneHandler = None,
    key: options.OneKey = None,
    limit: options.Limit = 100,
    as_json: AsJson = False,
) -> None:
    """Count invocations by status, and list them, the latest first."""
    from durable_invocations.ingress import facts
    from iscp_dagster.api.invocations import chosen, open_invocations
    from iscp_dagster.cli.invocations import show as shown
    from iscp_dagster.cli.jobs.json import write

    wanted = chosen(status=status, service=service, handler=handler, key=key, limit=limit)
    store = open_invocations(os.environ)
    found = [facts.invocation(each) for each in store.invocations(wanted)]
    if as_json:
        write(found)
    else:
        counts = {each.label: number for each, number in sorted(store.counts(wanted).items())}
        shown.invocations(found, limit, counts)


@invocations.command()
def show(id_: options.InvocationId, *, as_json: AsJson = False) -> None:
    """Show an invocation, and its journal entry by entry."""
    from iscp_dagster.api.invocations import open_invocations, whole
    from iscp_dagster.cli.invocations import show as shown
    from iscp_dagster.cli.jobs.json import write

    found = whole(open_invocations(os.environ), id_)
    if as_json:
        write(found)
    else:
        shown.whole(found)


@invocations.command()
def cancel(id_: options.InvocationId, *, as_json: AsJson = False) -> None:
    """Cancel an invocation: what it waits for fails with 409, and its handler may clean up."""
    _changed(id_, "cancel", "is canceled", as_json=as_json)


@invocations.command()
def kill(id_: options.InvocationId, *, as_json: AsJson = False) -> None:
    """End an invocation at once, and the calls that it waits for; its handler learns nothing."""
    _changed(id_, "kill", "is killed", as_json=as_json)


@invocations.command()
def pause(id_: options.InvocationId, *, as_json: AsJson = False) -> None:
    """Have nobody drive an invocation until it is resumed."""
    _changed(id_, "pause", "is paused", as_json=as_json)


@invocations.command()
def resume(id_: options.InvocationId, *, as_json: AsJson = False) -> None:
    """Drive a paused invocation again, or one that backs off, at once."""
    _changed(id_, "resume", "goes on", as_json=as_json)


@invocations.command()
def purge(id_: options.InvocationId, *, as_json: AsJson = False) -> None:
    """Forget an invocation that has ended: its journal, output and idempotency key."""
    _changed(id_, "purge", "is forgotten", as_json=as_json)


@invocations.command()
def resolve(
    awakeable: Annotated[
        str, typer.Argument(metavar="AWAKEABLE", help="An awakeable's id.", show_default=False)
    ],
    value: Annotated[
        str | None, typer.Argument(help="Its value, in JSON; default: none.", show_default=False)
    ] = None,
    *,
    reject: Annotated[
        str | None, typer.Option(help="Fail it for this reason instead.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Complete an awakeable, for which a handler waits, with a value or a failure."""
    from iscp_dagster.cli.parts.results import print_result

    if value is not None and reject is not None:
        raise typer.BadParameter("give a value or --reject, not both.")
    with _client() as client:
        if reject is None:
            changed = client.resolve(awakeable, _parsed(value))
        else:
            changed = client.reject(awakeable, reject)
    how = "is resolved" if reject is None else "is rejected"
    text = f"{awakeable} {how if changed else 'was completed before'}."
    print_result({"awakeable": awakeable, "changed": changed}, text, as_json=as_json)


@invocations.command()
def deploy(
    uri: Annotated[
        str | None,
        typer.Argument(
            metavar="ADDRESS", help="http://host:port; default: list all.", show_default=False
        ),
    ] = None,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Also if a service becomes one of another kind.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Register the services at an address, as they are now; without one, list the addresses."""
    from iscp_dagster.cli.invocations import show as shown
    from iscp_dagster.cli.jobs.json import write

    with _client() as client:
        found = client.deployments() if uri is None else [client.register(uri, force=force)]
    if as_json:
        write(found if uri is None else found[0])
    else:
        shown.deployments(found)


def _changed(id_: str, verb: str, how: str, *, as_json: bool) -> None:
    from iscp_dagster.cli.parts.results import print_result

    with _client() as client:
        changed = client.change(id_, verb)
    said = how if changed else f"is left as it is: there is nothing to {verb}"
    print_result({"id": id_, "changed": changed}, f"{id_} {said}.", as_json=as_json)


def _client() -> Client:
    from iscp_dagster.api.invocations import open_invocations_client
    from iscp_dagster.local.stack.environment import with_stack

    return open_invocations_client(with_stack(os.environ))


def _parsed(value: str | None) -> bytes | None:
    """The value as it is sent, if it is JSON; an error of usage otherwise."""
    import json

    if value is None:
        return None
    try:
        json.loads(value)
    except ValueError as error:
        raise typer.BadParameter(f"{value!r} is no JSON; quote a text: '\"{value}\"'.") from error
    return value.encode()
