"""Checks a GraphQL document before it is executed: its size, its depth, and its validity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from graphql import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    GraphQLError,
    GraphQLSyntaxError,
    OperationDefinitionNode,
    SelectionSetNode,
    get_operation_ast,
    parse,
    validate,
)
from graphql.validation.validate import ValidationAbortedError

from iscp_dagster.model.errors import IscpError
from iscp_dagster.serve.graph.schemas import Ready

PARSE, VALIDATION, INPUT = "GRAPHQL_PARSE_FAILED", "GRAPHQL_VALIDATION_FAILED", "BAD_USER_INPUT"
TOO_COMPLEX, NOT_BUILT = "QUERY_TOO_COMPLEX", "NOT_BUILT"
MOST_ERRORS = 10


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The most that a document may have; introspection as tools send it fits in."""

    tokens: int = 8_000
    depth: int = 16
    fields: int = 1_000
    """Fields, each counted wherever its fragment is used."""
    roots: int = 20
    """Fields of the operation itself, each of which reads an index."""


class DocumentError(IscpError):
    """A document was refused; nothing was executed. `errors` have their codes."""

    code = 10_850

    def __init__(self, message: str, errors: Sequence[GraphQLError] = ()) -> None:
        super().__init__(message)
        self.errors = tuple(errors)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A valid document, and the operation in it that is to be executed."""

    document: DocumentNode
    operation: OperationDefinitionNode
    introspects: bool = False
    """Whether it may ask the schema about itself."""


def checked(
    ready: Ready, text: str, operation_name: str | None, shape: Shape | None = None
) -> Checked:
    """Parse and validate a document. Raises DocumentError."""
    shape = shape or Shape()
    try:
        document = _parsed(text, shape)
        _check_built(ready, document)
        _check_shape(document, shape)
        errors = validate(ready.schema, document, max_errors=MOST_ERRORS)
    except RecursionError:
        raise refused(TOO_COMPLEX, "The document is nested too deeply.") from None
    if errors:
        # Too many errors, and too many comparisons of fields, end in the same way.
        if len(errors) == 1 and isinstance(errors[0], ValidationAbortedError):
            raise refused(TOO_COMPLEX, "The document names the same fields too often; ask once.")
        raise DocumentError(errors[0].message, [coded(each, VALIDATION) for each in errors])
    operation = get_operation_ast(document, operation_name)
    if operation is None:
        raise refused(
            INPUT,
            f"There is no operation {operation_name!r}; name one of the document's operations.",
        )
    if ready.schema.get_root_type(operation.operation) is None:
        raise refused(VALIDATION, f"This server has no {operation.operation.value}s.")
    return Checked(document=document, operation=operation, introspects="__" in text)


def coded(error: GraphQLError, code: str) -> GraphQLError:
    """Give the error a code, unless it has one."""
    error.extensions = {"code": code, **(error.extensions or {})}
    return error


def refused(code: str, message: str) -> DocumentError:
    """Return the error of a document that is refused for one reason."""
    return DocumentError(message, [GraphQLError(message, extensions={"code": code})])


def _parsed(text: str, shape: Shape) -> DocumentNode:
    try:
        return parse(text, max_tokens=shape.tokens)
    except GraphQLSyntaxError as error:
        # The parser says so where it gives up: too many tokens, or too deeply nested ones.
        large = "Parsing aborted" in error.message
        known = coded(error, TOO_COMPLEX if large else PARSE)
        raise DocumentError(error.message, [known]) from error


def _check_built(ready: Ready, document: DocumentNode) -> None:
    """Tell an index that is not built yet from one that does not exist."""
    for operation in document.definitions:
        if isinstance(operation, OperationDefinitionNode):
            for each in operation.selection_set.selections:
                if isinstance(each, FieldNode) and each.name.value in ready.catalog.unbuilt:
                    raise refused(
                        NOT_BUILT,
                        f"The index behind {each.name.value} is declared, but not built yet, or "
                        "its table cannot be read; ask again when its first iteration has ended.",
                    )


def _check_shape(document: DocumentNode, shape: Shape) -> None:
    fragments = {
        each.name.value: each
        for each in document.definitions
        if isinstance(each, FragmentDefinitionNode)
    }
    sizes = _Sizes(fragments, shape.depth)
    for each in document.definitions:
        if isinstance(each, OperationDefinitionNode):
            depth, fields, roots = sizes.of(each.selection_set)
            for what, has, most in (
                ("levels", depth, shape.depth),
                ("fields", fields, shape.fields),
                ("fields of the operation", roots, shape.roots),
            ):
                if has > most:
                    raise refused(
                        TOO_COMPLEX,
                        f"The document has more than {most:,} {what}, this server's cap; ask for "
                        "less.",
                    )


class _Sizes:
    """Measures selections; each fragment once, so that many spreads cost little."""

    def __init__(self, fragments: Mapping[str, FragmentDefinitionNode], deepest: int) -> None:
        self._fragments, self._deepest = fragments, deepest
        self._known: dict[str, tuple[int, int, int]] = {}

    def of(self, selections: SelectionSetNode) -> tuple[int, int, int]:
        """The depth, the number of fields, and the number of those at the top."""
        parts = list(self._parts(selections))
        return (
            max((depth for depth, _, _ in parts), default=0),
            sum(fields for _, fields, _ in parts),
            sum(roots for _, _, roots in parts),
        )

    def _parts(self, selections: SelectionSetNode) -> Iterator[tuple[int, int, int]]:
        for each in selections.selections:
            if isinstance(each, FragmentSpreadNode):
                yield self._fragment(each.name.value)
            elif isinstance(each, FieldNode):
                inner = self.of(each.selection_set) if each.selection_set else (0, 0, 0)
                yield inner[0] + 1, inner[1] + 1, 1
            else:
                inner_set: SelectionSetNode = each.selection_set  # type: ignore[attr-defined]
                yield self.of(inner_set)

    def _fragment(self, name: str) -> tuple[int, int, int]:
        if name not in self._known:
            # A cycle ends here; validation names it.
            self._known[name] = (0, 0, 0)
            if name in self._fragments:
                self._known[name] = self.of(self._fragments[name].selection_set)
        return self._known[name]
