"""Errors of file systems and stores: whether one file is at fault, or its whole store is down."""

import errno
import os

import pytest

from iscp_dagster.delta.log.storage_errors import translate_data_error
from iscp_dagster.model.errors import UnavailableError, UnreadableError
from support.errors import assert_names

STATUS = "Server returned non-2xx status code"


def store_error(*causes):
    """Return an error as deltalake's store words it, with its colours."""
    return OSError("\n \x1b[31m\u21b3\x1b[0m ".join(["Generic S3 error", *causes]))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (store_error("HTTP error", "error sending request", "tcp connect error"), UnavailableError),
        (store_error(STATUS, "503 Service Unavailable"), UnavailableError),
        (store_error(STATUS, "400 Bad Request"), UnreadableError),
        (OSError(errno.EIO, os.strerror(errno.EIO)), UnreadableError),
    ],
    ids=["no server", "server fails", "store refuses", "system refuses"],
)
def test_a_store_that_is_down_is_told_from_a_file_that_is_refused(error, kind):
    translated = translate_data_error("s3://lake/t/x", error)
    assert type(translated) is kind
    assert not translated.permanent
    assert_names(str(translated), "s3://lake/t/x")
