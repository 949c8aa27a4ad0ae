"""Messages show an invalid address without its secrets."""

import pytest

from durable_invocations.addresses import mask_secrets


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://host:1/path", "http://host:1/path"),
        ("http://host/a?b=secret#secret", "http://host/a"),
        ("http://me:secret@host/path", "http://host/path"),
        ("me:secret@host", "host"),
        ("http://me:secret@proxy/https://host", "http://proxy/https://host"),
        ("http://me:sec://ret@host", "http://host"),
        ("http://me:secret?secret@host", "http://…"),
        ("http://me:secret#secret@host", "http://…"),
        ("http://host?token=secret@secret", "http://…"),
        ("me:secret#secret@host", "…"),
        (7, "7"),
    ],
)
def test_an_address_is_shown_without_possible_secrets(address, shown):
    assert mask_secrets(address) == shown
