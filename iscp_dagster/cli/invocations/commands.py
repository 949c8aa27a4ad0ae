"""`iscp invocations`: serve, inspect and control durable invocations."""

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
    from iscp_dagster.api.invocations import build_selection, open_invocations
    from iscp_dagster.cli.invocations import show as invocation_show
    from iscp_dagster.cli.jobs.json import write

    selection = build_selection(
        status=status, service=service, handler=handler, key=key, limit=limit
    )
    store = open_invocations(os.environ)
    records = [facts.describe_invocation(invocation) for invocation in store.invocations(selection)]
    if as_json:
        write(records)
    else:
        counts = {
            invocation_status.label: number
            for invocation_status, number in sorted(store.count_invocations(selection).items())
        }
        invocation_show.print_invocations(records, limit, counts)


@invocations.command()
def show(id_: options.InvocationId, *, as_json: AsJson = False) -> None:
    """Show an invocation, and its journal entry by entry."""
    from iscp_dagster.api.invocations import open_invocations, read_invocation_facts
    from iscp_dagster.cli.invocations import show as invocation_show
    from iscp_dagster.cli.jobs.json import write

    invocation = read_invocation_facts(open_invocations(os.environ), id_)
    if as_json:
        write(invocation)
    else:
        invocation_show.print_invocation(invocation)


@invocations.command()
def cancel(id_: options.InvocationId, *, as_json: AsJson = False) -> None:
    """Cancel an invocation: what it waits for fails with 409, and its handler may clean up."""
    _change_invocation(id_, "cancel", "is canceled", as_json=as_json)


@invocations.command()
def kill(id_: options.InvocationId, *, as_json: AsJson = False) -> None:
    """End an invocation and the calls it waits for at once; its handler cannot clean up."""
    _change_invocation(id_, "kill", "is killed", as_json=as_json)


@invocations.command()
def pause(id_: options.InvocationId, *, as_json: AsJson = False) -> None:
    """Stop driving an invocation until it is resumed."""
    _change_invocation(id_, "pause", "is paused", as_json=as_json)


@invocations.command()
def resume(id_: options.InvocationId, *, as_json: AsJson = False) -> None:
    """Drive a paused invocation, or one in backoff, again at once."""
    _change_invocation(id_, "resume", "is resumed", as_json=as_json)


@invocations.command()
def purge(id_: options.InvocationId, *, as_json: AsJson = False) -> None:
    """Forget an invocation that has ended: its journal, output and idempotency key."""
    _change_invocation(id_, "purge", "is forgotten", as_json=as_json)


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
    with _open_client() as client:
        if reject is None:
            changed = client.resolve(awakeable, _parse_value(value))
        else:
            changed = client.reject(awakeable, reject)
    outcome = "is resolved" if reject is None else "is rejected"
    text = f"{awakeable} {outcome if changed else 'was completed before'}."
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
        bool, typer.Option("--force", help="Even if a service changes its kind.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Register the services at an address, as they are now; without one, list the addresses."""
    from iscp_dagster.cli.invocations import show as invocation_show
    from iscp_dagster.cli.jobs.json import write

    with _open_client() as client:
        deployments = client.deployments() if uri is None else [client.register(uri, force=force)]
    if as_json:
        write(deployments if uri is None else deployments[0])
    else:
        invocation_show.print_deployments(deployments)


def _change_invocation(id_: str, verb: str, outcome: str, *, as_json: bool) -> None:
    from iscp_dagster.cli.parts.results import print_result

    with _open_client() as client:
        changed = client.change_invocation(id_, verb)
    text = outcome if changed else f"is left as it is: there is nothing to {verb}"
    print_result({"id": id_, "changed": changed}, f"{id_} {text}.", as_json=as_json)


def _open_client() -> Client:
    from iscp_dagster.api.invocations import open_invocations_client
    from iscp_dagster.local.stack.environment import add_stack_variables

    return open_invocations_client(add_stack_variables(os.environ))


def _parse_value(value: str | None) -> bytes | None:
    """The value as bytes to send; a usage error if it is not JSON."""
    import json

    if value is None:
        return None
    try:
        json.loads(value)
    except ValueError as error:
        raise typer.BadParameter(f"{value!r} is not JSON; quote text: '\"{value}\"'.") from error
    return value.encode()
