"""Which addresses are refused, by an explicit list; traps of every kind of embedded address."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.webhooks.sending.addresses import find_refusal, parse_network
from support.errors import assert_names, raises_naming

PUBLIC = ("8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450:4001:81b::200e")
DENIED = (
    *("10.0.0.1", "100.64.0.1", "127.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1"),
    *("192.0.0.1", "192.0.2.1", "192.88.99.3", "198.18.0.1", "198.51.100.1", "203.0.113.1"),
    *("240.0.0.1", "::1", "fc00::1", "fd00::1", "fec0::1", "100::1", "2001:db8::1", "3fff::1"),
    *("5f00::1", "4000::1", "2001:2::1", "2001:20::1"),
    # Within an IPv6 address: mapped, compatible, translated, NAT64, 6to4, Teredo, ISATAP.
    *("::ffff:10.0.0.1", "::10.0.0.1", "::ffff:0:10.0.0.1", "64:ff9b::c0a8:0", "64:ff9b:1::a00:1"),
    *("2002:c0a8:1::1", "2001:0:4136:e378:8000:63bf:f5ff:fffe", "2600::5efe:10.0.0.1"),
    *("2600::200:5efe:10.0.0.1", "2002:808:808::1"),
)
NEVER = (
    *("0.0.0.0", "0.1.2.3", "169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192"),
    *("224.1.2.3", "239.255.255.255", "255.255.255.255", "::", "fe80::1", "fe80::1%eth0"),
    *("ff02::1", "fd00:ec2::254", "fd20:ce::254", "::ffff:169.254.169.254", "::169.254.169.254"),
    *("64:ff9b::a9fe:a9fe", "64:ff9b::a83f:8110", "2002:a9fe:a9fe::1", "2600::5efe:a9fe:a9fe"),
    *("2001:0:a9fe:a9fe:8000:63bf:3fff:fdd2", "2001:0:4136:e378:8000:63bf:5601:5601"),
    "::ffff:0:169.254.169.254",
)
EVERYTHING = (parse_network("0.0.0.0/0"), parse_network("::/0"))


@pytest.mark.parametrize("address", [*PUBLIC, "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are_sent_to(address):
    assert find_refusal(address) is None


@pytest.mark.parametrize("address", DENIED)
def test_an_address_that_is_not_public_is_refused_unless_it_is_allowed(address):
    assert_names(find_refusal(address), address, "allow=[...]")
    assert find_refusal(address, EVERYTHING) is None


@pytest.mark.parametrize("address", NEVER)
def test_some_addresses_are_refused_whatever_is_allowed(address):
    assert find_refusal(address, EVERYTHING)
    assert find_refusal(address)


def test_an_allowed_network_allows_no_other():
    allowed = (parse_network("10.1.0.0/16"), parse_network("fd12::/64"))
    assert find_refusal("10.1.2.3", allowed) is None
    assert find_refusal("::ffff:10.1.2.3", allowed) is None
    assert find_refusal("fd12::5", allowed) is None
    assert find_refusal("10.2.0.1", allowed)
    assert find_refusal("fd13::5", allowed)


@given(st.ip_addresses(v=4))
def test_an_address_in_another_spelling_is_judged_like_itself(address: IPv4Address):
    refused = find_refusal(str(address)) is not None
    for number in (0xFFFF << 32 | int(address), 0x64_FF9B << 96 | int(address)):
        assert (find_refusal(str(IPv6Address(number))) is not None) == refused


@pytest.mark.parametrize("network", ["169.254.0.0/16", "169.254.169.254/32", "fe80::/64"])
def test_a_network_that_is_never_allowed_cannot_be_named(network):
    with raises_naming(ValueError, network):
        parse_network(network)
