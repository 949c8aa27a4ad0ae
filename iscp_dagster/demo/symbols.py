"""Modules, classes and functions of installed distributions, read from their source text."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

LONGEST_SIGNATURE = 400
LONGEST_DOC = 4_000
LONGEST_TEXT = 500
"""Characters that are embedded: the vector of a longer text says less about each part."""

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One module of a distribution."""

    distribution: str
    module: str
    file: str
    """Relative to the folder that packages are installed in."""
    path: str


@dataclass(frozen=True, kw_only=True)
class Symbol:
    """One row of `docs.symbols`, without its embedding."""

    distribution: str
    qualified_name: str
    kind: str
    signature: str
    doc: str
    module: str
    file: str
    line: int

    @property
    def private(self) -> bool:
        """Whether its own name starts with an underscore; `__init__` and such do not count."""
        name = self.qualified_name.rpartition(".")[2]
        return name.startswith("_") and not name.endswith("__")

    @property
    def text(self) -> str:
        """The text that is embedded."""
        return f"{self.qualified_name}\n{self.doc}"[:LONGEST_TEXT].strip()


def list_source_files(distribution: str) -> Iterator[SourceFile]:
    """The importable modules of an installed distribution, tests left out."""
    for file in metadata.files(distribution) or ():
        parts = PurePosixPath(file).with_suffix("").parts
        importable = all(part.isidentifier() for part in parts)
        if file.suffix != ".py" or not importable or "tests" in parts:
            continue
        names = parts[:-1] if parts[-1] == "__init__" else parts
        path = Path(str(file.locate()))
        if names and path.is_file():
            yield SourceFile(
                distribution=distribution, module=".".join(names), file=str(file), path=str(path)
            )


def read_symbols(source: SourceFile) -> list[Symbol]:
    """The module and what it defines; the last definition of a name counts.

    A file that this Python cannot parse has no symbols.
    """
    try:
        tree = ast.parse(Path(source.path).read_bytes())
    except (SyntaxError, ValueError):
        return []
    by_name = {source.module: _build_symbol(source, source.module, "module", "", tree, 1)}
    for name, node in _find_definitions(tree, source.module):
        by_name[name] = _build_symbol(
            source, name, _get_kind(node), _format_signature(node), node, node.lineno
        )
    return list(by_name.values())


def _find_definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Definition]]:
    """Classes and functions at any depth of modules and classes, not inside functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            name = f"{prefix}.{child.name}"
            yield name, child
            if isinstance(child, ast.ClassDef):
                yield from _find_definitions(child, name)
        elif isinstance(child, ast.If | ast.Try | ast.With):
            yield from _find_definitions(child, prefix)


def _build_symbol(  # noqa: PLR0917 - the columns of one row
    source: SourceFile, name: str, kind: str, signature: str, node: Any, line: int
) -> Symbol:
    return Symbol(
        distribution=source.distribution,
        qualified_name=name,
        kind=kind,
        signature=signature[:LONGEST_SIGNATURE],
        doc=_replace_surrogates(ast.get_docstring(node) or "")[:LONGEST_DOC],
        module=source.module,
        file=source.file,
        line=line,
    )


def _get_kind(node: Definition) -> str:
    return "class" if isinstance(node, ast.ClassDef) else "function"


def _format_signature(node: Definition) -> str:
    if isinstance(node, ast.ClassDef):
        return f"({', '.join(ast.unparse(base) for base in node.bases)})"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(node.args)}){returns}"


def _replace_surrogates(text: str) -> str:
    return text.encode(errors="replace").decode()


def summarize_symbols(rows: Iterable[Symbol]) -> Iterator[Symbol]:
    """The public symbols, each with the first paragraph of its documentation."""
    for row in rows:
        if not row.private:
            yield Symbol(**{**vars(row), "doc": row.doc.partition("\n\n")[0]})


def mark_deprecated(rows: Iterable[Symbol], deprecated: str) -> Iterator[Symbol]:
    """The symbols; the documentation of the named one says that it is deprecated."""
    for row in rows:
        if row.qualified_name == deprecated:
            yield Symbol(**{**vars(row), "doc": f"{row.doc}\nDeprecated, as an example."})
        else:
            yield row
