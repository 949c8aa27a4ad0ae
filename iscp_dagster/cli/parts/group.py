"""How `iscp` and its command groups answer a mistyped command line."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException


class Group(TyperGroup):
    """A group whose usage errors name the bad value, and the `iscp` command that was meant."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except TyperException as problem:
            root = ctx.find_root()
            if root is not ctx and args[0] in root.command.list_commands(root):
                problem.message += f" Did you mean `{root.info_name} {args[0]}`?"
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as problem:
            if ctx.parent is None:
                problem.message = f"{_format_rejected_value(problem)}{problem.message}"
            raise


def _format_rejected_value(problem: typer.BadParameter) -> str:
    """The value that pydantic rejected, for a message; empty if it rejected none."""
    errors = getattr(problem.__cause__, "errors", None)
    return f"{errors()[0]['input']!r}: " if errors else ""
