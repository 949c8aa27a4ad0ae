"""What a run still holds of the jobs that it claimed."""

from iscp_dagster.sync.writing.consumer_claims import CLAIMS_PER_QUERY, ConsumerClaims
from support.jobs.log_rows import LAYOUT, add, key, log_in_memory, over

TENANTS = [f"t{number:03}" for number in range(CLAIMS_PER_QUERY + 1)]


def test_a_run_holds_something_until_it_has_lost_its_last_claim():
    log, keys = log_in_memory(), [key(tenant=tenant) for tenant in TENANTS]
    add(log, *keys)
    claims = ConsumerClaims(log=log, claims=log.claim_jobs(over(*keys), "run", LAYOUT))
    assert (claims.holds_any(), claims.find_lost_tenants()) == (True, {})
    log.cancel(keys[:-1])
    assert claims.holds_any()
    assert claims.find_lost_tenants().keys() == set(TENANTS[:-1])
    log.cancel(keys[-1:])
    assert not claims.holds_any()
