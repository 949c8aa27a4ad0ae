"""Jobs that call services are told what is no runtime in errors of their own."""

import pytest

from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.serviceconsumers.runtime import RuntimeClient
from runtime_support.endpoints.lying_runtimes import LIES, http, lied_to


@pytest.mark.parametrize("lie", LIES)
def test_what_is_no_answer_of_a_runtime_is_told_so(lie):
    told = pytest.raises(UnavailableError, match="not a runtime")
    with lied_to(http(LIES[lie])) as client, told:
        RuntimeClient(client).is_keyed("http://127.0.0.1:1", "A", "b")
