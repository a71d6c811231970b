"""Commands of a user of p4runtime-shell; run in a process of its own (the module has one client, and may exit).

python shell_script.py HOST:PORT DEVICE_ID FOLDER_OF_P4: prints one JSON object with what the switch answered.
"""

import json
import sys
from pathlib import Path
from typing import Any

import p4runtime_sh.shell as sh
from p4runtime_sh.p4runtime import P4RuntimeWriteException


def tables() -> dict[str, Any]:
    route = sh.TableEntry("RouterIngress.route")(action="RouterIngress.forward")
    route.match["dst"] = "10.0.1.0/24"
    route.action.set(next_hop="02:00:00:00:00:09", port="9")
    route.metadata = b"mine"
    route.insert()
    filtered = sh.TableEntry("RouterIngress.filter")(action="RouterIngress.drop", priority=10)
    filtered.match.set(src="10.0.0.0&&&255.0.0.0", protocol="17..19", port="4")
    filtered.insert()
    again = ""
    try:
        route.insert()
    except P4RuntimeWriteException as error:
        again = error.errors[0][1].message
    route.action.set(port="8")
    route.modify()
    default = sh.TableEntry("RouterIngress.route")(action="RouterIngress.flood", is_default=True)
    default.action["group"] = "7"
    default.modify()
    counter = sh.DirectCounterEntry("RouterIngress.routed")
    counter.table_entry.match["dst"] = "10.0.1.0/24"
    counter.packet_count, counter.byte_count = 5, 6
    counter.modify()
    found = [str(e.msg()) for name in ("route", "filter") for e in sh.TableEntry(f"RouterIngress.{name}").read()]
    counted = [(e.packet_count, e.byte_count) for e in counter.read()]
    filtered.delete()
    left = len(list(sh.TableEntry("RouterIngress.filter").read()))
    const = [e.action["class"].value.hex() for e in sh.TableEntry("RouterIngress.known_ports").read()]
    default = sh.TableEntry("RouterIngress.route")(is_default=True)
    defaults = [e.action.action_name for e in default.read()]
    return {
        "entries": found, "again": bool(again), "counted": counted, "left": left, "const": const, "defaults": defaults
    }  # fmt: skip


def groups_and_counters() -> dict[str, Any]:
    group = sh.MulticastGroupEntry(7).add(1, 1).add(2, 1).add(2, 1000)
    group.insert()
    group.add(3, 1)
    group.modify()
    replicas = sorted((r.egress_port, r.instance) for g in sh.MulticastGroupEntry(7).read() for r in g.replicas)
    group.delete()
    gone = ""
    try:
        list(sh.MulticastGroupEntry(7).read())
    except Exception as error:
        gone = str(error)
    cell = sh.CounterEntry("RouterIngress.arrived")
    cell.index = 4
    cell.packet_count, cell.byte_count = 10, 20
    cell.modify()
    one = [(e.index, e.packet_count, e.byte_count) for e in cell.read()]
    everything = len(list(sh.CounterEntry("RouterIngress.by_class").read()))
    return {"replicas": replicas, "gone": "NOT_FOUND" in gone, "one": one, "all": everything}


def packets() -> dict[str, Any]:
    """A packet-out to the CPU port comes back as a packet-in, whose header is the packet's first bytes."""
    arriving = sh.PacketIn()
    out = sh.PacketOut(bytes.fromhex("960088b5") + bytes(range(20)), egress_port="255")
    out.send()
    message = arriving.packet_in_queue.get(timeout=15)
    values = {m.metadata_id: m.value.hex() for m in message.packet.metadata}
    return {"payload": message.packet.payload.hex(), "metadata": values}


def main(address: str, device_id: str, folder: str) -> None:
    found = {}
    for name, act in (("router", tables), ("router", groups_and_counters), ("punt", packets)):
        config = sh.FwdPipeConfig(f"{folder}/{name}.p4info.txtpb", f"{folder}/{name}.json")
        sh.setup(int(device_id), address, (0, 7), config=config, verbose=False)
        found[act.__name__] = act()
        sh.teardown()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], str(Path(sys.argv[3])))
