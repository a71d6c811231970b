"""Addresses: every option and variable that takes one says that packets travel over IPv4."""

import socket

import pytest

import sa_atp
from sa_atp.basics.errors import UserError
from sa_atp.cli import main
from sa_atp.net.sockets.addresses import IPV4, ipv4_of, parse_address
from sa_atp.switches.p4runtime.rpc import check_address


@pytest.mark.parametrize(
    "words",
    [
        ["up", "--listen", "[::1]:26100", "--", "true"],
        ["up", "--listen", "::1", "--", "true"],
        ["ps", "--listen", "[::]:0"],
        ["ps", "--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:9", "--switch-address", "[::1]:21314"],
        ["switch", "--grpc", "127.0.0.1:0", "--udp", "1=[::1]:0"],
        ["leaf", "--up", "[fe80::1%eth0]:21313"],
        ["leaf", "--up", "127.0.0.1", "--host", "::1"],
        ["params", "--listen", "[::1]:0"],
        ["watch", "--once", "--ps", "[::1]:21313"],
        ["doctor", "--server", "udp://[::1]:21313"],
    ],
    ids=" ".join,
)
def test_an_option_with_an_ipv6_address_says_what_to_do(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert IPV4 in err


@pytest.mark.parametrize("server", ["udp://[::1]:21313", "[::1]", "udp://::1"])
def test_a_program_with_an_ipv6_address_is_told_what_to_do(server: str) -> None:
    with pytest.raises(UserError, match="packets travel over IPv4"):
        sa_atp.connect(server, job="job", rank=0, world_size=1)


def test_the_ipv4_address_of_this_host_is_taken_wherever_ipv6_comes_first() -> None:
    assert parse_address("localhost:26100") == ("127.0.0.1", 26100)
    assert parse_address("udp://localhost") == ("127.0.0.1", 21313)


def test_addresses_of_grpc_may_be_ipv6() -> None:
    assert check_address("[::1]:9559") == "[::1]:9559"


def test_a_name_that_has_only_ipv6_is_not_one_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: None, family: int) -> list[object]:
        if host != "six.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(family, socket.SOCK_DGRAM, 0, "", ("2001:db8::1", 0, 0, 0))]

    def no_ipv4(host: str) -> str:
        raise socket.gaierror(socket.EAI_NODATA, "No address associated with hostname")

    monkeypatch.setattr(socket, "gethostbyname", no_ipv4)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(UserError) as caught:
        parse_address("six.example:9")
    assert (
        str(caught.value) == f"address 'six.example:9': the host 'six.example' has no IPv4 address, only IPv6; {IPV4}"
    )
    with pytest.raises(UserError, match=r"--host seven\.example: the host 'seven\.example' is not known"):
        ipv4_of("seven.example", "--host seven.example")
