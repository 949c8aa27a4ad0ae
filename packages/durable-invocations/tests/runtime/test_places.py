"""How deployments share a runtime's places."""

import pytest

from durable_invocations.runtime.driving.places import Places


def take_all(places, name):
    """Take all places that the deployment may have; their number."""
    count = 0
    while places.free and name not in places.full:
        places.take(name)
        count += 1
    return count


def test_each_deployment_leaves_a_quarter_of_the_free_places():
    places = Places(256)
    assert [take_all(places, name) for name in ("first", "second", "third")] == [192, 48, 12]
    assert places.full == ["first", "second", "third"]
    assert places.free == 3
    for _ in range(10):
        places.leave("second")
    assert "second" not in places.full


@pytest.mark.parametrize("most", [1, 2, 3])
def test_one_deployment_may_have_all_of_a_few_places(most):
    places = Places(most)
    assert take_all(places, "only") == most
    assert places.free == 0


def test_no_claim_gives_a_deployment_more_than_its_share():
    places = Places(8)
    for _ in range(4):
        places.take("first")
    assert places.free == 2
    for _ in range(2):
        places.take("first")
    assert (places.free, places.full) == (2, ["first"])


def test_a_place_that_was_left_is_not_counted():
    places = Places(4)
    places.take("first")
    places.leave("first")
    assert (places.free, list(places.full)) == (3, [])
