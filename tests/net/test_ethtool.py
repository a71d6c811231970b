"""Features of interfaces are set and read back, in this network namespace and in another one."""

import json
import subprocess
import sys
from typing import Any

import pytest

from sa_atp.basics.errors import SaAtpError
from sa_atp.net.sockets import ethtool, namespace

# Run in a namespace of its own, whose loopback interface nobody else uses.
ON_LOOPBACK = """
import json, sys
from sa_atp.net.sockets import ethtool
before = ethtool.features("lo")
ethtool.set_features("lo", json.loads(sys.argv[1]))
after = ethtool.features("lo")
print(json.dumps([before, {name: on for name, on in after.items() if before[name] != on}]))
"""
# The same from outside, by a process that is in it.
FROM_OUTSIDE = """
import contextlib, json, subprocess, sys
from sa_atp.net.sockets import ethtool, namespace
ours = ethtool.features("lo")
with subprocess.Popen(namespace.inside(sys.executable, "-c", "print(flush=True); input()"),
                      stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
    other.stdout.readline()
    with contextlib.closing(ethtool.socket_in(other.pid)) as via:
        ethtool.set_features("lo", {"tso": False}, via)
        theirs = ethtool.features("lo", via)
    other.communicate(b"\\n")
print(json.dumps([ours == ethtool.features("lo"), theirs["tx-tcp-segmentation"]]))
"""


def inside(code: str, *arguments: str) -> Any:
    command = namespace.inside(sys.executable, "-c", code, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.needs("namespaces")
def test_features_that_are_set_are_read_back() -> None:
    before, changed = inside(ON_LOOPBACK, json.dumps({"gro": False, "tx-udp-segmentation": False}))
    assert before["rx-gro"]
    assert before["tx-udp-segmentation"]
    assert changed == {"rx-gro": False, "tx-udp-segmentation": False}


@pytest.mark.needs("namespaces")
def test_a_name_may_stand_for_several_and_the_last_one_counts() -> None:
    before, changed = inside(ON_LOOPBACK, json.dumps({"tso": False, "tx-tcp6-segmentation": True}))
    expected = {name for name in before if name.startswith("tx-tcp") and before[name]} - {"tx-tcp6-segmentation"}
    assert "tx-tcp-segmentation" in expected
    assert changed == dict.fromkeys(expected, False)


@pytest.mark.needs("namespaces")
def test_fixed_features_do_not_change() -> None:
    before, changed = inside(ON_LOOPBACK, json.dumps({"tx": False, "loopback": False}))
    assert before["loopback"]
    assert changed == {}


@pytest.mark.needs("namespaces")
def test_in_the_namespace_of_another_process() -> None:
    assert inside(FROM_OUTSIDE) == [True, False]


def test_missing_interfaces_and_features_are_errors() -> None:
    with pytest.raises(SaAtpError, match=r"^no-such: the kernel does not set or tell its features: No such device$"):
        ethtool.features("no-such")
    with pytest.raises(SaAtpError, match=r"^lo: this kernel knows no feature warp$"):
        ethtool.set_features("lo", {"warp": True})
    with pytest.raises(SaAtpError, match="has 1 to 15 bytes"):
        ethtool.features("a-name-that-is-too-long")
    with pytest.raises(SaAtpError, match="the network namespace of process 4194305 cannot be entered: No such file"):
        ethtool.socket_in((1 << 22) + 1)
