"""The jobs that follow from a declaration: of its indexes, its views and its triggers."""

from dataclasses import replace

from iscp_dagster import Changes, Mirror, SourceTable, Trigger, View
from iscp_dagster.model.declared.linking.attach import attach_to_tables
from iscp_dagster.planning.job_specs import hash_table_jobs, list_table_specs, make_new_jobs

TRADES = SourceTable("shop.trades", key="id", tenant="desk", indexes=[Mirror(), Changes()])
BIG = View("big", of=TRADES, where="amount > 100", priority=2)
LARGE = Trigger("large", on=BIG, match="amount > 500", priority=7)


def attach(views=(BIG,), triggers=(LARGE,), table=TRADES):
    return attach_to_tables([table], views, triggers)[0]


def test_every_index_view_and_trigger_has_a_job_for_each_tenant():
    specs = list_table_specs(attach(), {})
    details = {name.job: spec.detail for name, spec in specs.items()}
    assert {job: (each.consumer.type, each.priority) for job, each in details.items()} == {
        "mirror": ("mirror", 0),
        "changes": ("changes", 0),
        "big": ("changes", 2),
        "large": ("trigger", 7),
    }
    assert not any(each.consumer.options for each in details.values())
    jobs = make_new_jobs("t", ["a", "b"], specs)
    assert {(job.tenant, job.name.job) for job in jobs} == {(t, n) for t in "ab" for n in details}


def test_a_declaration_that_does_not_register_itself_has_no_job():
    table = replace(TRADES, indexes=[Mirror(), Changes(auto_register=False)])
    big = replace(BIG, of=table, auto_register=False)
    large = replace(LARGE, on=big, auto_register=False)
    assert {name.job for name in list_table_specs(attach([big], [large], table), {})} == {"mirror"}


def test_another_view_or_trigger_changes_a_tables_terms():
    """Or a restart would leave a table at rest without their jobs."""
    tables = [attach(), attach(triggers=[]), attach([], []), TRADES]
    terms = [hash_table_jobs(each, {}) for each in tables]
    assert terms[2] == terms[3]
    assert len({*terms}) == 3
    assert hash_table_jobs(attach(triggers=[replace(LARGE, priority=8)]), {}) != terms[0]
