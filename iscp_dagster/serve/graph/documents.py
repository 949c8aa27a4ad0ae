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
from iscp_dagster.serve.graph.schema_cache import ServedSchema

PARSE, VALIDATION, BAD_INPUT = "GRAPHQL_PARSE_FAILED", "GRAPHQL_VALIDATION_FAILED", "BAD_USER_INPUT"
TOO_COMPLEX, NOT_BUILT = "QUERY_TOO_COMPLEX", "NOT_BUILT"
MOST_ERRORS = 10


@dataclass(frozen=True, kw_only=True)
class DocumentLimits:
    """The most that a document may have; the introspection queries of tools fit in."""

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
class ValidatedDocument:
    """A valid document, and the operation in it that is to be executed."""

    document: DocumentNode
    operation: OperationDefinitionNode
    introspects: bool = False
    """Whether it may introspect the schema."""


def validate_document(
    served_schema: ServedSchema,
    text: str,
    operation_name: str | None,
    limits: DocumentLimits | None = None,
) -> ValidatedDocument:
    """Parse and validate a document. Raises DocumentError."""
    limits = limits or DocumentLimits()
    try:
        document = _parse_document(text, limits)
        _check_built(served_schema, document)
        _check_shape(document, limits)
        errors = validate(served_schema.schema, document, max_errors=MOST_ERRORS)
    except RecursionError:
        raise make_document_error(TOO_COMPLEX, "The document is nested too deeply.") from None
    if errors:
        # Too many errors, and too many comparisons of fields, abort in the same way.
        if len(errors) == 1 and isinstance(errors[0], ValidationAbortedError):
            raise make_document_error(
                TOO_COMPLEX, "The document repeats the same fields too often; select each once."
            )
        raise DocumentError(errors[0].message, [add_code(error, VALIDATION) for error in errors])
    operation = get_operation_ast(document, operation_name)
    if operation is None:
        raise make_document_error(
            BAD_INPUT,
            f"There is no operation {operation_name!r}; name one of the document's operations.",
        )
    if served_schema.schema.get_root_type(operation.operation) is None:
        raise make_document_error(VALIDATION, f"This server has no {operation.operation.value}s.")
    return ValidatedDocument(document=document, operation=operation, introspects="__" in text)


def add_code(error: GraphQLError, code: str) -> GraphQLError:
    """Give the error a code, unless it has one."""
    error.extensions = {"code": code, **(error.extensions or {})}
    return error


def make_document_error(code: str, message: str) -> DocumentError:
    """Return the error of a document that is refused for one reason."""
    return DocumentError(message, [GraphQLError(message, extensions={"code": code})])


def _parse_document(text: str, limits: DocumentLimits) -> DocumentNode:
    try:
        return parse(text, max_tokens=limits.tokens)
    except GraphQLSyntaxError as error:
        # The parser's message for too many tokens, or too deeply nested ones.
        too_large = "Parsing aborted" in error.message
        coded_error = add_code(error, TOO_COMPLEX if too_large else PARSE)
        raise DocumentError(error.message, [coded_error]) from error


def _check_built(served_schema: ServedSchema, document: DocumentNode) -> None:
    """Distinguish an index that is not built yet from one that does not exist."""
    for operation in document.definitions:
        if isinstance(operation, OperationDefinitionNode):
            for selection in operation.selection_set.selections:
                if (
                    isinstance(selection, FieldNode)
                    and selection.name.value in served_schema.catalog.unbuilt
                ):
                    raise make_document_error(
                        NOT_BUILT,
                        f"The index behind {selection.name.value} is declared, but not built yet, "
                        "or its table cannot be read; retry when its first iteration has ended.",
                    )


def _check_shape(document: DocumentNode, limits: DocumentLimits) -> None:
    fragments = {
        definition.name.value: definition
        for definition in document.definitions
        if isinstance(definition, FragmentDefinitionNode)
    }
    meter = _SelectionMeter(fragments, limits.depth)
    for definition in document.definitions:
        if isinstance(definition, OperationDefinitionNode):
            depth, fields, roots = meter.measure_selections(definition.selection_set)
            for unit, count, cap in (
                ("levels", depth, limits.depth),
                ("fields", fields, limits.fields),
                ("fields of the operation", roots, limits.roots),
            ):
                if count > cap:
                    raise make_document_error(
                        TOO_COMPLEX,
                        f"The document has more than {cap:,} {unit}, this server's cap; ask for "
                        "less.",
                    )


class _SelectionMeter:
    """Measures selections; each fragment once, so that many spreads cost little."""

    def __init__(self, fragments: Mapping[str, FragmentDefinitionNode], deepest: int) -> None:
        self._fragments, self._deepest = fragments, deepest
        self._sizes: dict[str, tuple[int, int, int]] = {}

    def measure_selections(self, selections: SelectionSetNode) -> tuple[int, int, int]:
        """The depth, the number of fields, and the number of top-level fields."""
        parts = list(self._measure_parts(selections))
        return (
            max((depth for depth, _, _ in parts), default=0),
            sum(fields for _, fields, _ in parts),
            sum(roots for _, _, roots in parts),
        )

    def _measure_parts(self, selections: SelectionSetNode) -> Iterator[tuple[int, int, int]]:
        for selection in selections.selections:
            if isinstance(selection, FragmentSpreadNode):
                yield self._measure_fragment(selection.name.value)
            elif isinstance(selection, FieldNode):
                inner = (
                    self.measure_selections(selection.selection_set)
                    if selection.selection_set
                    else (0, 0, 0)
                )
                yield inner[0] + 1, inner[1] + 1, 1
            else:
                inner_set: SelectionSetNode = selection.selection_set  # type: ignore[attr-defined]
                yield self.measure_selections(inner_set)

    def _measure_fragment(self, name: str) -> tuple[int, int, int]:
        if name not in self._sizes:
            # A cycle ends here; validation reports it.
            self._sizes[name] = (0, 0, 0)
            if name in self._fragments:
                self._sizes[name] = self.measure_selections(self._fragments[name].selection_set)
        return self._sizes[name]
