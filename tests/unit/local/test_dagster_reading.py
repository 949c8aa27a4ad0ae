"""Which GraphQL Dagster's guarded webserver executes for a GET."""

import pytest

from iscp_dagster.local.web.read_only import LONGEST, explain_refusal


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("{ version }", ""),
        ("query A { version } query B { ...f } fragment f on Query { version }", ""),
        ("fragment f on Mutation { launchRun }", ""),
        ("", ""),
        ("mutation {", ""),
        ("mutation { launchRun }", "send the mutation by POST"),
        ('query A { a(b: "mutation") } mutation B { launchRun }', "send the mutation by POST"),
        ("subscription { a }", "send the subscription by POST"),
        ("{a" * 2_000 + "}" * 2_000, ""),
        ("{ a }" + " " * LONGEST, "more than 16,384 characters"),
    ],
)
def test_a_get_brings_queries_alone(document, reason):
    found = explain_refusal(document)
    assert reason in found
    assert bool(found) is bool(reason)
