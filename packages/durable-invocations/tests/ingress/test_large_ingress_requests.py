"""The runtime's answer to a request that is too large, over a real connection."""

from runtime_support.large_requests import status_of_large
from runtime_support.runtimes.live_runtime import running


def test_the_runtime_answers_a_request_that_is_too_large(tmp_path):
    with running(tmp_path) as runtime:
        assert status_of_large(runtime.url, "/Nobody/has/it") == 404
        assert status_of_large(runtime.url, "/admin/services") == 405
