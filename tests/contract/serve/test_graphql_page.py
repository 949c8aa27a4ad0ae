"""The examples of docs/graphql.md answer as they say, and its tables are those of the code."""

import json
import re

import pytest

from iscp_dagster.serve.access import parse_tokens
from iscp_dagster.serve.columns import _SCALARS_BY_TYPE
from iscp_dagster.serve.graph.documents import DocumentLimits
from iscp_dagster.serve.reads.caps import Caps
from iscp_dagster.serve.web.graphql_http import HttpBounds
from iscp_dagster.serve.where import MOST_TERMS
from support.clients.float_digits import approximate
from support.lake.shop_indexes import ask
from support.paths import DOCS

PAGE = (DOCS / "graphql.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```graphql\n(\{.*?)```\n\n```json\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("query", "answer"), EXAMPLES)
def test_an_example_answers_as_it_says(shop_client, query, answer):
    answers = ask(shop_client, query, "of-acme")
    assert answers == approximate(json.loads(answer))


@pytest.mark.parametrize("distance", [0, 1.1920929e-07, -1.1920929e-07])
def test_an_example_holds_whatever_the_processor_makes_of_a_distance_of_zero(distance):
    assert {"rows": [{"id": "1", "distance": distance}]} == approximate(
        {"rows": [{"id": "1", "distance": 0}]}
    )
    assert approximate({"distance": 0, "id": "1"}) != {"distance": 0.001, "id": "1"}


def test_the_file_of_tokens_is_one():
    (tokens,) = re.findall(r'```json title="tokens.json"\n(.*?)```', PAGE, re.DOTALL)
    assert len(parse_tokens(tokens, DOCS)) == 3


def test_the_table_of_types_has_the_scalars_of_the_code():
    rows = re.findall(r"^\| (`.*?) \| `(\w+)` \| ", PAGE, re.MULTILINE)
    for names, scalar in rows:
        for name in re.findall(r"`(\w+)`", names):
            assert scalar in {_SCALARS_BY_TYPE[name].name, "Bytes"}, name
    assert {_SCALARS_BY_TYPE[name].name for name in _SCALARS_BY_TYPE} <= {
        scalar for _, scalar in rows
    }


def test_the_caps_are_those_of_the_code():
    bounds, shape, caps = HttpBounds(), DocumentLimits(), Caps()
    for said in (
        f"{bounds.body_bytes // 1024} KiB a request",
        f"{shape.tokens:,} tokens",
        f"{shape.depth} levels",
        f"{shape.fields:,} fields, {shape.roots} of them at the top",
        f"{MOST_TERMS:,} comparisons",
        f"{caps.rows:,} rows a field",
        f"{caps.skipped:,} rows skipped",
        f"{caps.cells:,} values and {caps.bytes // 1024**2} MiB of rows a request",
        f"{caps.introspection_fields:,} fields that",
        f"{caps.seconds} seconds a request",
        f"{bounds.max_running} requests at a time; {bounds.max_waiting:,} more",
        f"more wait for {bounds.wait_seconds:g} seconds",
        f"`limit` is {caps.default_rows} unless",
    ):
        assert said in PAGE, said


def test_the_example_finds_something():
    assert len(EXAMPLES) >= 2
