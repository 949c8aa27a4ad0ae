"""The words of every error that the code makes, read from its source.

They are asserted once, in tests/golden/errors.txt, which `python -m support.project.error_messages`
writes when it runs in tests/.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from support.paths import GOLDEN, PACKAGES, ROOT

MESSAGES = GOLDEN / "errors.txt"
Assigned = dict[str, list[ast.expr]]
TREES = (ROOT / "iscp_dagster", *(each / each.name.replace("-", "_") for each in PACKAGES))
CONSTRUCTOR = re.compile(r"Error$|Refused$|_error$|^(Exit|Failure|Misfit|SetupProblem)$")


def list_messages() -> str:
    """The message of each error that the code makes, as a line `class: text` under its module.

    `{}` stands for a value.
    """
    lines = []
    for path in (path for tree in TREES for path in sorted(tree.rglob("*.py"))):
        if found := [*find_messages(ast.parse(path.read_text(encoding="utf-8")))]:
            lines += ["", str(path.relative_to(ROOT)), *(f"  {each}" for each in found)]
    return "\n".join(lines[1:]) + "\n"


def find_messages(node: ast.AST, names: Assigned | None = None) -> Iterator[str]:
    """The messages of the errors that a module makes, in the order of the source."""
    names = find_assigned(node, deep=False) if names is None else names
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from find_messages(child, names | find_assigned(child, deep=True))
            continue
        if isinstance(child, ast.Call) and CONSTRUCTOR.search(name := _name(child)):
            texts = [_text(each, names) for each in child.args]
            yield from (f"{name}: {each}" for each in texts if re.search(r"\w{2}.* ", each))
        yield from find_messages(child, names)


def find_assigned(node: ast.AST, *, deep: bool) -> Assigned:
    """What is assigned to each name of a module, or of a whole function."""
    found: Assigned = {}
    for each in ast.walk(node) if deep else ast.iter_child_nodes(node):
        match each:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found.setdefault(name, []).append(value)
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                found.setdefault(name, []).append(value)
            case _:
                pass
    return found


def _name(call: ast.Call) -> str:
    return str(getattr(call.func, "id", getattr(call.func, "attr", "")))


def _text(node: ast.expr, names: Assigned) -> str:  # noqa: PLR0911
    """The text of a string's expression, with `{}` for what is only known at run time."""
    match node:
        case ast.Constant(value=str() as text):
            return text.replace("\n", "\\n")
        case ast.JoinedStr(values=parts):
            return "".join(_text(each, names) for each in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, names) + _text(right, names)
        case ast.Call(func=ast.Attribute(value=template, attr="format")):
            return _text(template, names)
        case ast.IfExp(body=one, orelse=other):
            return f"({_text(one, names)} | {_text(other, names)})"
        case ast.FormattedValue(value=ast.Name() as value):
            return _text(value, names)
        case ast.Name(id=name) if name in names:
            others = {each: found for each, found in names.items() if each != name}
            texts = [_text(each, others) for each in names[name]]
            return " | ".join(texts) if any(" " in each for each in texts) else "{}"
        case _:
            return "{}"


if __name__ == "__main__":
    MESSAGES.write_text(list_messages(), encoding="utf-8")
