"""Errors of file systems and stores: whether one file is at fault, or its whole store is down."""

import errno
import os

import pytest

from iscp_dagster.delta.log.storage_errors import translate_data_error
from iscp_dagster.model.errors import UnavailableError, UnreadableError

DOWN = {
    "nothing listens": ("HTTP error", "error sending request", "tcp connect error"),
    "it fails itself": ("Server returned non-2xx status code", "503 Service Unavailable"),
}
REFUSED = ("Server returned non-2xx status code", "400 Bad Request")


def of_store(*said):
    """Return an error as deltalake's store words it, with its colours."""
    return OSError("\n \x1b[31m\u21b3\x1b[0m ".join(["Generic S3 error", *said]))


ONE = {
    "the system refuses": OSError(errno.EIO, os.strerror(errno.EIO)),
    "the store refuses": of_store(*REFUSED),
}


@pytest.mark.parametrize("said", DOWN)
def test_a_store_that_is_down_is_no_fault_of_a_file(said):
    assert type(translate_data_error("s3://lake/t/x", of_store(*DOWN[said]))) is UnavailableError


@pytest.mark.parametrize("case", ONE)
def test_a_file_that_is_refused_is_told_from_a_store_that_is_down(case):
    found = translate_data_error("s3://lake/t/x", ONE[case])
    assert type(found) is UnreadableError
    assert not found.permanent
    assert "s3://lake/t/x cannot be read now" in str(found)
