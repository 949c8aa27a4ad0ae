"""Which GraphQL Dagster's guarded webserver executes for a GET."""

import pytest

from iscp_dagster.local.web.read_only import LONGEST, explain_refusal
from support.errors import assert_names


@pytest.mark.parametrize(
    ("document", "values"),
    [
        ("query A { version } query B { ...f } fragment f on Query { version }", []),
        ("fragment f on Mutation { launchRun }", []),
        ("", []),
        ("mutation { launchRun }", ["mutation", "POST"]),
        ('query A { a(b: "mutation") } mutation B { launchRun }', ["mutation", "POST"]),
        ("subscription { a }", ["subscription", "POST"]),
        ("{a" * 2_000 + "}" * 2_000, []),
        ("{ a }" + " " * LONGEST, ["16,384", "POST"]),
    ],
)
def test_a_get_may_only_send_queries(document, values):
    reason = explain_refusal(document)
    assert bool(reason) is bool(values)
    assert_names(reason, *values)
