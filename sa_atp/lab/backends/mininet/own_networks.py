"""Aggregation in a network that the user has built with Mininet, not from a plan: its layout, and a parameter server."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.waiting import waiting
from sa_atp.lab.backends.mininet.layout import Cable, HostNode, NetworkLayout, SwitchNode
from sa_atp.lab.backends.mininet.network import MARK_ABOVE, READY_TIMEOUT_S
from sa_atp.lab.backends.mininet.nodes import P4Switch
from sa_atp.lab.runs.processes import Process
from sa_atp.protocol.packets.spec import UDP_PORT


def layout_of(net: Any, server: str) -> NetworkLayout:
    """The layout of a network of Mininet's. The switch next to the parameter server's host is the root of aggregation,
    switches with a link to the root are leaves.

    Args: net: a started Mininet; server: the parameter server's host. Raises: UserError: not a network for aggregation.
    """
    if server not in [host.name for host in net.hosts]:
        known = ", ".join(host.name for host in net.hosts)
        raise UserError(f"the network has no host {server!r} for the parameter server; it has {known}")
    for switch in net.switches:
        if not isinstance(switch, P4Switch):
            raise UserError(f"switch {switch.name} is a {type(switch).__name__}: expected EmbeddedSwitch or Bmv2Switch")
    layout = NetworkLayout()
    for host in net.hosts:
        layout.add_host(HostNode(name=host.name, ip=host.IP(), role="server" if host.name == server else "worker"))
    for link in net.links:
        (node, port), (other, other_port) = ((end.node, end.node.ports[end]) for end in (link.intf1, link.intf2))
        layout.cables.append(Cable(node=node.name, other=other.name, port=port, other_port=other_port))
    root = next((node for _, node in layout.neighbours(server)), "")
    for switch in net.switches:
        layout.add_switch(SwitchNode(name=switch.name, level="root" if switch.name == root else "leaf"))
    layout.check("the network")
    return layout


@contextmanager
def parameter_server(net: Any, host: str, options: Sequence[str] = ()) -> Iterator[str]:
    """Runs a parameter server on a host of a started network for a block; it configures all switches.

    Args: options: more options of `sa-atp ps`. Yields: its address, which workers connect to, "udp://HOST:PORT".
    Raises: UserError: see layout_of; ProcessError: it has ended.
    """
    layout = layout_of(net, host)
    root: P4Switch = net[layout.root.name]
    addresses = {switch.name: switch.grpc for switch in net.switches}
    entries = layout.switch_file(addresses, MARK_ABOVE[root.kind])
    macs = {each.IP(): each.MAC() for each in net.hosts}
    for entry in entries["switches"]:
        entry["macs"] = macs
    where = f"{layout.server.ip}:{UDP_PORT}"
    with tempfile.TemporaryDirectory(prefix="sa-atp-") as place:
        file = Path(place) / "switches.json"
        file.write_text(json.dumps(entries))
        build = ["--lanes", str(root.lanes), "--contributions", str(root.contributions)]
        process = Process(
            "parameter server",
            ["sa_atp", "ps", "--listen", where, "--switches", str(file), *build, *options],
            Path(place) / "ps.log",
            inside=["mnexec", "-a", str(net[host].pid)],
        )
        try:
            with waiting("waiting for the parameter server, which compiles the first time"):
                process.answer(READY_TIMEOUT_S)
            yield f"udp://{where}"
        finally:
            process.end()
