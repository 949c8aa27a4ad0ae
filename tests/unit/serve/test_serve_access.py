"""Tokens and the tenants that they name."""

import hashlib
import json

import pytest

from iscp_dagster.model.errors import ConfigError
from iscp_dagster.serve.access import (
    ALL_TENANTS_VIEWER,
    FunctionAccess,
    OpenAccess,
    UnauthenticatedError,
    Viewer,
    load_access,
    parse_bearer,
)
from iscp_dagster.serve.web.app import check_host
from support.errors import raises_naming


def tenants_by_name(token):
    """Stand for a user's function, named by its import path."""
    return {"one": ["acme"], "all": "*", "number": 7}.get(token)


def write_tokens(tmp_path, tokens):
    path = tmp_path / "tokens.json"
    path.write_text(tokens if isinstance(tokens, str) else json.dumps(tokens))
    return path


def test_a_file_names_tokens_or_their_digests(tmp_path):
    digest = hashlib.sha256(b"hashed").hexdigest()
    path = write_tokens(tmp_path, {"plain": ["acme"], f"sha256:{digest}": "*", "nobody": []})
    known = load_access(str(path))
    assert not known.is_open
    assert known.identify_viewer("plain") == Viewer(tenants=frozenset({"acme"}))
    assert known.identify_viewer("hashed") == ALL_TENANTS_VIEWER
    assert known.identify_viewer("nobody") == Viewer(tenants=frozenset())
    for unknown in (None, "", "other", digest, f"sha256:{digest}"):
        with pytest.raises(UnauthenticatedError):
            known.identify_viewer(unknown)


def test_a_changed_file_counts_at_once_and_a_broken_one_lets_nobody_in(tmp_path):
    path = write_tokens(tmp_path, {"old": "*"})
    known = load_access(str(path))
    known.identify_viewer("old")
    write_tokens(tmp_path, {"newer": "*"})
    assert known.identify_viewer("newer") == ALL_TENANTS_VIEWER
    with pytest.raises(UnauthenticatedError):
        known.identify_viewer("old")
    write_tokens(tmp_path, "{")
    with raises_naming(ConfigError, path, "JSON"):
        known.identify_viewer("newer")
    path.unlink()
    with raises_naming(ConfigError, path, "No such file"):
        known.identify_viewer("newer")


@pytest.mark.parametrize(
    ("tokens", "values"),
    [
        ({}, ["object"]),
        ([], ["object"]),
        ({"top-secret": "acme"}, ["Token 1", "str"]),
        ({"top-secret": [1]}, ["Token 1", "list"]),
        ({"": ["acme"]}, ["Token 1", "header"]),
        ({"top-secret here": ["acme"]}, ["Token 1", "header"]),
    ],
)
def test_a_wrong_file_is_refused_at_the_start_without_its_tokens(tmp_path, tokens, values):
    path = write_tokens(tmp_path, tokens)
    with raises_naming(ConfigError, path, *values) as caught:
        load_access(str(path))
    assert "top-secret" not in str(caught.value)


def test_a_users_function_names_the_tenants():
    known = load_access(f"{__name__}:tenants_by_name")
    assert isinstance(known, FunctionAccess)
    assert known.identify_viewer("one") == Viewer(tenants=frozenset({"acme"}))
    assert known.identify_viewer("all") == ALL_TENANTS_VIEWER
    for unknown in ("other", None):
        with pytest.raises(UnauthenticatedError):
            known.identify_viewer(unknown)
    with raises_naming(ConfigError, f"{__name__}:tenants_by_name", "int"):
        known.identify_viewer("number")
    with raises_naming(ConfigError, "'nowhere.module:name'"):
        load_access("nowhere.module:name")


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Basic abc", None),
        ("Bearer", None),
        ("Bearer a b", None),
        (None, None),
    ],
)
def test_a_bearer_token_is_read_from_its_header(header, token):
    assert parse_bearer(header) == token


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_without_tokens_the_server_listens_on_loopback(host):
    check_host(host, OpenAccess())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.org", ""])
def test_elsewhere_it_listens_only_with_tokens(host, tmp_path):
    with raises_naming(ConfigError, repr(host), "--tokens"):
        check_host(host, OpenAccess())
    check_host(host, load_access(str(write_tokens(tmp_path, {"t": "*"}))))
