"""The networks of plans.

star        w0 w1 w2 w3 ── s1 ── ps

two-level   w0 w2 ── leaf1 ──┐
            w1 w3 ── leaf2 ──┴── s1 ── ps

dumbbell    w0 w2 t1 ── leaf1 ──────── s1 ── w1 w3 t2 ps
                               trunk

file        as a topology.json of p4lang's tutorials says; see p4lang.py
"""

from dataclasses import replace
from pathlib import Path

from sa_atp.lab.backends.mininet import p4lang
from sa_atp.lab.backends.mininet.layout import HostNode, LinkQuality, NetworkLayout, SwitchNode
from sa_atp.lab.plans.plan import Plan

SERVER_IP = "10.0.255.1"
TRAFFIC_IPS = ("10.0.254.1", "10.0.254.2")
ADDED = {"ps": SERVER_IP, "t1": TRAFFIC_IPS[0], "t2": TRAFFIC_IPS[1]}
"""Hosts that are not workers: the parameter server, and both ends of background traffic."""
ROOT = "s1"


def of_plan(plan: Plan, folder: Path) -> NetworkLayout:
    """The network that a plan describes. Args: folder: of the plan file. Raises: UserError."""
    drawing = _Drawing(plan)
    if plan.topology.kind == "file":
        file = folder / plan.topology.file
        drawing.layout = p4lang.read(file, drawing.link(), ADDED)
        p4lang.check_hosts(drawing.layout, plan.topology.workers, plan.job.jobs, str(file))
        drawing.adopt_workers()
    else:
        drawing.layout.add_switch(SwitchNode(name=ROOT))
        leaves = {"star": 0, "two-level": plan.topology.racks, "dumbbell": 1}[plan.topology.kind]
        for number in range(1, leaves + 1):
            drawing.layout.add_switch(SwitchNode(name=f"leaf{number}", level="leaf"))
            drawing.layout.connect(f"leaf{number}", ROOT, drawing.trunk())
        at = [f"leaf{number + 1}" for number in range(leaves)]
        if plan.topology.kind != "two-level":
            at.append(ROOT)
        for job in range(plan.job.jobs):
            for rank in range(plan.topology.workers):
                drawing.add_worker(rank, job, at[rank % len(at)])
    drawing.add_server()
    drawing.add_traffic()
    drawing.layout.check("topology")
    return drawing.layout


def star(workers: int, rate_mbps: float | None, mtu: int = 1500) -> NetworkLayout:
    """A star of workers with links of this rate and MTU."""
    layout = NetworkLayout()
    layout.add_switch(SwitchNode(name=ROOT))
    quality = LinkQuality(rate_mbps=rate_mbps, mtu=mtu)
    for rank in range(workers):
        name = worker_name(rank)
        layout.add_host(HostNode(name=name, ip=worker_ip(rank), role="worker", rank=rank))
        layout.connect(name, ROOT, quality)
    layout.add_host(HostNode(name="ps", ip=SERVER_IP, role="server"))
    layout.connect("ps", ROOT, quality)
    return layout


def worker_name(rank: int, job: int = 0) -> str:
    return f"w{rank}" if job == 0 else f"j{job}w{rank}"


def worker_ip(rank: int, job: int = 0) -> str:
    return f"10.0.{job}.{rank + 1}"


class _Drawing:
    """Builds a layout from a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.layout = NetworkLayout()

    def link(self, rank: int | None = None) -> LinkQuality:
        """The settings of a host's link. Args: rank: of the worker; None: the host is not a worker."""
        topology, network, straggler = self.plan.topology, self.plan.network, self.plan.straggler
        is_congested = straggler.by == "congestion" and straggler.pattern == "constant" and rank in straggler.workers
        own = rank is not None and topology.worker_mbps
        return LinkQuality(
            rate_mbps=topology.worker_mbps[rank] if rank is not None and own else topology.link_mbps,
            delay_us=topology.delay_us,
            jitter_us=network.jitter_us,
            loss=network.loss,
            duplicate=network.duplicate,
            reorder=network.reorder,
            queue_packets=topology.queue_packets,
            mtu=topology.mtu,
            own_share=1 / straggler.slowdown if is_congested else 1.0,
        )

    def trunk(self) -> LinkQuality:
        """The settings of a link between switches."""
        return replace(self.link(), rate_mbps=self.plan.topology.trunk_mbps or self.plan.topology.link_mbps)

    @property
    def cpu(self) -> float | None:
        return self.plan.job.cpu_share if self.plan.job.device == "cpu" else None

    def add_worker(self, rank: int, job: int, switch: str) -> None:
        name = worker_name(rank, job)
        ip = worker_ip(rank, job)
        self.layout.add_host(HostNode(name=name, ip=ip, role="worker", rank=rank, job=job, cpu=self.cpu))
        self.layout.connect(name, switch, self.link(rank))

    def adopt_workers(self) -> None:
        """Makes the hosts of a file workers, in their order; congested links are shared as in other networks."""
        for number, (name, host) in enumerate(list(self.layout.hosts.items())):
            rank, job = number % self.plan.topology.workers, number // self.plan.topology.workers
            self.layout.hosts[name] = replace(host, role="worker", rank=rank, job=job, cpu=self.cpu)
        ranks = {host.name: host.rank for host in self.layout.hosts.values()}
        self.layout.cables = [
            replace(c, quality=replace(c.quality, own_share=self.link(ranks[c.node]).own_share))
            if c.node in ranks
            else c
            for c in self.layout.cables
        ]

    def add_server(self) -> None:
        """Adds the parameter server at the root, with a link as fast as those between switches."""
        self.layout.add_host(HostNode(name="ps", ip=SERVER_IP, role="server"))
        self.layout.connect("ps", self.layout.root.name, self.trunk())

    def add_traffic(self) -> None:
        """Adds hosts for background traffic, with links of unlimited rate."""
        fast = LinkQuality(rate_mbps=None, mtu=self.plan.topology.mtu)
        if self.plan.traffic.is_wanted:
            root = self.layout.root.name
            leaf = next((name for name, s in self.layout.switches.items() if s.level == "leaf"), root)
            self.layout.add_host(HostNode(name="t1", ip=TRAFFIC_IPS[0], role="traffic"))
            self.layout.connect("t1", leaf, fast)
        if self.plan.traffic.is_wanted or self.plan.straggler.by == "congestion":
            self.layout.add_host(HostNode(name="t2", ip=TRAFFIC_IPS[1], role="traffic"))
            self.layout.connect("t2", self.layout.root.name, fast)
