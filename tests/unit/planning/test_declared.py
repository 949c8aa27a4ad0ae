"""The jobs that follow from a declaration: of its indexes, its views and its triggers."""

from dataclasses import replace

from iscp_dagster import Changes, Mirror, SourceTable, Trigger, View
from iscp_dagster.model.declared.linking.attach import attach_to_tables
from iscp_dagster.planning.declared import compute_terms, list_table_specs, make_new_jobs

TRADES = SourceTable("shop.trades", key="id", tenant="desk", indexes=[Mirror(), Changes()])
BIG = View("big", of=TRADES, where="amount > 100", priority=2)
LARGE = Trigger("large", on=BIG, match="amount > 500", priority=7)


def given(views=(BIG,), triggers=(LARGE,)):
    return attach_to_tables([TRADES], views, triggers)[0]


def test_every_index_view_and_trigger_has_a_job_for_each_tenant():
    specs = list_table_specs(given(), {})
    found = {
        name.job: (
            spec.detail.consumer.type,
            spec.detail.priority,
            dict(spec.detail.consumer.options),
        )
        for name, spec in specs.items()
    }
    assert found == {
        "mirror": ("mirror", 0, {}),
        "changes": ("changes", 0, {}),
        "big": ("changes", 2, {}),
        "large": ("trigger", 7, {}),
    }
    made = make_new_jobs("t", ["a", "b"], specs, but=[("a", "large")])
    assert [each.tenant for each in made if each.name.job == "large"] == ["b"]


def test_what_does_not_register_itself_has_no_job():
    quiet = given([replace(BIG, auto_register=False)], [replace(LARGE, auto_register=False)])
    assert {name.job for name in list_table_specs(quiet, {})} == {"mirror", "changes"}


def test_a_view_or_trigger_more_changes_a_table_s_terms():
    """Or a restart would leave a table at rest without their jobs."""
    found = [compute_terms(each, {}) for each in (given(), given([BIG], []), given([], []), TRADES)]
    assert found[2] == found[3]
    assert len({*found}) == 3
    assert compute_terms(given(triggers=[replace(LARGE, priority=8)]), {}) != found[0]
