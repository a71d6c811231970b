"""`sa-atp bench`: benchmarks on this machine, some beside a peer (Gloo, BMv2), and others in virtual time."""

import importlib
from typing import Any

from sa_atp.cli.parts.parser import Parser

# name: (module with `add_arguments` and `run`, what it measures)
BENCHMARKS = {
    "allreduce": ("sa_atp.lab.bench.allreduce", "goodput and CPU cost of one all-reduce"),
    "help": ("sa_atp.lab.bench.help", "iteration time with and without help, setting by setting, in virtual time"),
    "loss": ("sa_atp.lab.bench.loss", "goodput of an all-reduce under packet loss, in virtual time"),
    "packet": ("sa_atp.lab.bench.packet", "the time that one packet takes at each station of its way"),
    "parallel": (
        "sa_atp.lab.bench.parallel",
        "throughput of this machine's cores with several micro-batches at a time",
    ),
    "scale": ("sa_atp.lab.bench.scale", "iteration time over 4 to 1,024 workers, in virtual time"),
    "switch": ("sa_atp.lab.bench.switch.switch", "packets per second of the P4 program"),
}


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure an all-reduce, one packet, the switch, help, losses, parallel work, or how a cluster scales",
    )
    commands = parser.add_subparsers(
        title="benchmarks", dest="benchmark", required=True, metavar="BENCHMARK", parser_class=_LazyParser
    )
    for name, (module, what) in BENCHMARKS.items():
        commands.add_parser(name, help=what, description=f"Measures {what}.", module=module)


class _LazyParser(Parser):
    """A parser that imports its benchmark only when the user calls it, so that other commands start faster."""

    def __init__(self, *, module: str, **options: Any) -> None:
        super().__init__(**options)
        self._module: str | None = module

    def load(self) -> None:
        if self._module is not None:
            benchmark = importlib.import_module(self._module)
            self._module = None
            benchmark.add_arguments(self)
            self.set_defaults(run=benchmark.run, waits=f"{self.prog.partition(' ')[2]} measures")

    def parse_known_args(self, *arguments: Any, **options: Any) -> Any:
        self.load()
        return super().parse_known_args(*arguments, **options)
