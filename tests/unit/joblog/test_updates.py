"""Changes of a spec: named fields are replaced, empty ones stay."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec, TriggerSpec

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


def flat(spec):
    trigger, detail = spec.trigger.to_json(), spec.detail.to_json()
    consumer = detail.pop("consumer")
    return {**trigger, **detail, **consumer, "columns": tuple(consumer["columns"])}


@given(changes=CHANGES)
def test_what_a_change_names_is_new_and_the_rest_stays(changes):
    after = SpecUpdate(**changes).apply_to(SPEC)
    wanted = {**flat(SPEC), **changes}
    another = any(wanted[name] != flat(SPEC)[name] for name in ("type", "columns", "options"))
    assert flat(after) == {**wanted, "generation": int(another)}
    assert SpecUpdate(**changes).empty is not bool(changes)


def test_what_is_built_anew_is_another_generation_of_the_same():
    again = SpecUpdate(rebuild=True)
    after = again.apply_to(again.apply_to(SPEC))
    assert after.detail.consumer == replace(CONSUMER, generation=2)
    assert not again.empty


@given(changes=CHANGES)
def test_a_changed_spec_is_stored_as_json(changes):
    after = SpecUpdate(**changes).apply_to(SPEC)
    assert JobSpec.from_json(json.loads(json.dumps(after.to_json()))) == after


def test_a_change_is_read_from_json_that_is_shaped_like_a_spec():
    found = SpecUpdate.from_json(
        {
            "trigger": {"job_type": "greedy", "schedule": None},
            "detail": {"priority": 0, "consumer": {"columns": ["b"]}},
        }
    )
    assert found == SpecUpdate(job_type="greedy", priority=0, columns=("b",))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"triger": {}}, "unknown field 'triger'"),
        ({"detail": {"consumer": {"job": "other"}}}, "unknown field 'job'"),
        ({"detail": {"consumer": {"columns": "abc"}}}, "are not a list of names"),
        ([], "is not a JSON object"),
    ],
)
def test_a_change_that_cannot_be_read_is_refused(value, message):
    with pytest.raises(ConfigError, match=message):
        SpecUpdate.from_json(value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (SpecUpdate(job_type=""), "job_type is empty"),
        (SpecUpdate(max_bytes=-1), "max_bytes -1 is below 0"),
        (SpecUpdate(type="a\nb"), "consumer's type"),
    ],
)
def test_a_change_to_what_no_spec_may_have_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        change.apply_to(SPEC)
