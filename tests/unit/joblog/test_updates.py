"""Changes of a spec: named fields are replaced, empty ones stay."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec, TriggerSpec
from support.errors import raises_naming

CONSUMER = ConsumerInfo(type="mirror", db="d", table="t", job="j", columns=("a",))
SPEC = JobSpec(
    trigger=TriggerSpec(job_type="periodic", schedule={"interval": "10s"}, independent=True),
    detail=IterationDetail(priority=3, consumer=CONSUMER, max_versions=7, max_bytes=9),
)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "job_type": st.sampled_from(["default", "greedy"]),
        "schedule": st.dictionaries(st.sampled_from(["interval"]), st.just("1m")),
        "independent": st.booleans(),
        "priority": st.integers(-5, 5),
        "max_versions": st.integers(0, 5),
        "max_bytes": st.integers(0, 5),
        "type": st.sampled_from(["mirror", "text"]),
        "columns": st.sampled_from([(), ("b", "c")]),
        "options": st.dictionaries(st.just("text"), st.just("doc")),
    },
)


def flatten(spec):
    trigger, detail = spec.trigger.to_json(), spec.detail.to_json()
    consumer = detail.pop("consumer")
    return {**trigger, **detail, **consumer, "columns": tuple(consumer["columns"])}


@given(changes=CHANGES)
def test_the_named_fields_are_replaced_and_the_others_stay(changes):
    after = SpecUpdate(**changes).apply_to(SPEC)
    wanted = {**flatten(SPEC), **changes}
    rebuilt = any(wanted[name] != flatten(SPEC)[name] for name in ("type", "columns", "options"))
    assert flatten(after) == {**wanted, "generation": int(rebuilt)}
    assert SpecUpdate(**changes).empty is not bool(changes)
    assert JobSpec.from_json(json.loads(json.dumps(after.to_json()))) == after


def test_a_rebuild_is_another_generation_of_the_same():
    again = SpecUpdate(rebuild=True)
    after = again.apply_to(again.apply_to(SPEC))
    assert after.detail.consumer == replace(CONSUMER, generation=2)
    assert not again.empty


def test_a_change_is_read_from_json_that_is_shaped_like_a_spec():
    trigger = {"job_type": "greedy", "schedule": None}
    detail = {"priority": 0, "consumer": {"columns": ["b"]}}
    update = SpecUpdate.from_json({"trigger": trigger, "detail": detail})
    assert update == SpecUpdate(job_type="greedy", priority=0, columns=("b",))


@pytest.mark.parametrize(
    ("change", "value", "culprits"),
    [
        (SpecUpdate.from_json, {"triger": {}}, ["'triger'"]),
        (SpecUpdate.from_json, {"detail": {"consumer": {"job": "other"}}}, ["'job'"]),
        (SpecUpdate.from_json, {"detail": {"consumer": {"columns": "abc"}}}, ["'abc'"]),
        (SpecUpdate.from_json, [], ["object"]),
        (SpecUpdate(job_type="").apply_to, SPEC, ["job_type"]),
        (SpecUpdate(max_bytes=-1).apply_to, SPEC, ["max_bytes", -1]),
        (SpecUpdate(type="a\nb").apply_to, SPEC, ["type", repr("a\nb")]),
    ],
)
def test_a_change_that_is_unreadable_or_to_what_no_spec_may_have_is_refused(
    change, value, culprits
):
    with raises_naming(ConfigError, *culprits):
        change(value)
