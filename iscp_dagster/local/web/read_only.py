"""Limits a GET to GraphQL queries, which change nothing."""

from __future__ import annotations

from graphql import GraphQLError, OperationDefinitionNode, OperationType, parse

LONGEST = 16_384
"""The most characters of a document in a GET; a longer one must come by POST."""


def explain_refusal(document: str) -> str:
    """The reason why a GET may not send the document, with the remedy; empty if it only reads.

    Every operation counts, whichever one the request selects. An invalid document is left to the
    server, whose parser finds the same fault.
    """
    if len(document) > LONGEST:
        return f"Send a GraphQL document of more than {LONGEST:,} characters by POST."
    try:
        definitions = parse(document, no_location=True).definitions
    except GraphQLError:
        return ""
    operations = (
        definition for definition in definitions if isinstance(definition, OperationDefinitionNode)
    )
    others = [
        operation.operation
        for operation in operations
        if operation.operation is not OperationType.QUERY
    ]
    return f"A GET may only read; send the {others[0].value} by POST." if others else ""
