"""Which addresses events may be sent to: an explicit list of the non-public ones.

From the special-purpose registries of IANA (2025-10) and the addresses that clouds reserve for
machines' metadata. `ipaddress.is_global` passes multicast, NAT64 and 6to4 addresses of private
ones, and differs between versions of Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


def _parse_networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts)


NEVER_ALLOWED = _parse_networks(
    "0.0.0.0/8",  # this machine
    "169.254.0.0/16",  # link-local, and the metadata of most clouds
    "168.63.129.16/32",  # Azure's platform
    "100.100.100.200/32",  # Alibaba's metadata
    "192.0.0.192/32",  # Oracle's metadata
    "224.0.0.0/4",  # multicast
    "255.255.255.255/32",  # broadcast
    "::/128",  # this machine
    "fe80::/10",  # link-local
    "fd00:ec2::/32",  # Amazon's metadata
    "fd20:ce::/32",  # Google's metadata
    "ff00::/8",  # multicast
)
"""Never allowed, not even if an endpoint allows a network around them."""

DENIED_BY_DEFAULT = _parse_networks(
    "10.0.0.0/8",  # private
    "100.64.0.0/10",  # shared by carriers
    "127.0.0.0/8",  # loopback
    "172.16.0.0/12",  # private
    "192.0.0.0/24",  # protocol assignments
    "192.0.2.0/24",  # documentation
    "192.31.196.0/24",  # AS112
    "192.52.193.0/24",  # relays of multicast
    "192.88.99.0/24",  # relays of 6to4
    "192.168.0.0/16",  # private
    "192.175.48.0/24",  # AS112
    "198.18.0.0/15",  # benchmarks
    "198.51.100.0/24",  # documentation
    "203.0.113.0/24",  # documentation
    "240.0.0.0/4",  # reserved
    "2001::/23",  # protocol assignments, Teredo, benchmarks, ORCHID
    "2001:db8::/32",  # documentation
    "2002::/16",  # 6to4
    "2620:4f:8000::/48",  # AS112
    "3fff::/20",  # documentation
)
"""Denied unless the endpoint allows them."""

GLOBAL_6 = IPv6Network("2000::/3")
"""All unicast addresses that IPv6 has assigned; whatever is outside is denied, too."""
MAPPED = IPv6Network("::ffff:0:0/96")
"""The same host as the IPv4 address within."""
NAT64 = IPv6Network("64:ff9b::/96")
"""Leads to the IPv4 address within."""
LOOPBACK_6 = IPv6Address("::1")
_LOW_32 = (  # networks whose last 32 bits are an IPv4 address
    MAPPED,
    NAT64,
    IPv6Network("::/96"),
    IPv6Network("::ffff:0:0:0/96"),
    IPv6Network("64:ff9b:1::/96"),
)
_SIX_TO_FOUR = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
_ISATAP = frozenset({0x0000_5EFE, 0x0200_5EFE})
_BITS_32 = 0xFFFF_FFFF


def find_refusal(address: str, allowed: Sequence[Network] = ()) -> str | None:
    """Why nothing may be sent to the address; None: it may.

    An IPv6 address that leads to an IPv4 address is judged by both.
    """
    text, _, scope = address.partition("%")
    if scope:
        return f"{address} is link-local"
    parsed = ip_address(text)
    if isinstance(parsed, IPv6Address) and parsed in MAPPED:
        parsed = _extract_ipv4(parsed)
    candidates = (parsed, *_list_embedded_ipv4(parsed))
    if any(
        candidate in network
        for candidate in candidates
        for network in _filter_by_version(NEVER_ALLOWED, candidate)
    ):
        return f"{address} is never allowed"
    if any(parsed in network for network in _filter_by_version(allowed, parsed)):
        return None
    if any(_is_denied(candidate, allowed) for candidate in candidates):
        return f"{address} is not public; allow=[...] of the endpoint may name its network"
    return None


def parse_network(network: str) -> Network:
    """A network that an endpoint allows, such as 10.1.0.0/16.

    Raises ValueError if it is invalid, or holds only addresses that are never allowed.
    """
    parsed = ip_network(network)
    if any(_is_subnet(parsed, forbidden) for forbidden in NEVER_ALLOWED):
        raise ValueError(f"{network} is never allowed")
    return parsed


def _is_denied(address: Address, allowed: Sequence[Network]) -> bool:
    if any(address in network for network in _filter_by_version(allowed, address)):
        return False
    if any(address in network for network in _filter_by_version(DENIED_BY_DEFAULT, address)):
        return True
    # NAT64 leads to public addresses as well; the embedded address decides.
    return isinstance(address, IPv6Address) and address not in GLOBAL_6 and address not in NAT64


def _list_embedded_ipv4(address: Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses that an IPv6 address leads to or through."""
    if isinstance(address, IPv4Address):
        return
    number = int(address)
    embedded = any(address in network for network in _LOW_32) and address != LOOPBACK_6
    if embedded or number >> 32 & _BITS_32 in _ISATAP:
        yield _extract_ipv4(address)
    if address in _SIX_TO_FOUR:
        yield IPv4Address(number >> 80 & _BITS_32)
    if address in _TEREDO:
        yield IPv4Address(number >> 64 & _BITS_32)
        yield IPv4Address(~number & _BITS_32)


def _extract_ipv4(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & _BITS_32)


def _filter_by_version(networks: Sequence[Network], address: Address) -> Iterator[Network]:
    return (network for network in networks if network.version == address.version)


def _is_subnet(network: Network, other: Network) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(other, IPv4Network) and network.subnet_of(other)
    return isinstance(other, IPv6Network) and network.subnet_of(other)
