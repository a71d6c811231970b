"""Compares both simulators: `python -m sa_atp.lab.agreement.flow` writes the table of docs/flow-model.md."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sa_atp.lab.agreement.flow_settings import PLAN, SETTINGS
from sa_atp.lab.backends import simulated
from sa_atp.lab.plans import plan_files
from sa_atp.lab.report import stats
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import PolicyRun, RunResult


@dataclass(frozen=True, slots=True)
class FlowAgreement:
    """A policy in a setting: mean iteration times of both simulators."""

    setting: str
    policy: str
    packets_s: float
    flows_s: float

    @property
    def difference(self) -> float:
        """Relative difference of the flows' time from the packets'."""
        return self.flows_s / self.packets_s - 1


def compare(settings: Mapping[str, Sequence[str]]) -> Iterator[FlowAgreement]:
    """Runs each setting on both. Raises: SaAtpError."""
    for name, overrides in settings.items():
        packets, flows = (_means(network, overrides) for network in ("packets", "flows"))
        yield from (FlowAgreement(name, policy, packets[policy], flows[policy]) for policy in packets)


def _means(network: str, overrides: Sequence[str]) -> dict[str, float]:
    plan = plan_files.parse(PLAN, "a setting", [*overrides, f"sim.network={network}"])
    runs: list[PolicyRun] = simulated.run(plan, Progress())
    found = stats.policies(RunResult(plan, "", "sim", "embedded", {}, runs))
    return {each.policy: each.mean_s or 0.0 for each in found}


def lines(rows: Iterable[FlowAgreement]) -> Iterator[str]:
    """The rows as a Markdown table."""
    yield "| setting | policy | packets, ms | flows, ms | difference |"
    yield "|---|---|---|---|---|"
    for row in rows:
        yield (
            f"| {row.setting} | {row.policy} | {1e3 * row.packets_s:.2f} | {1e3 * row.flows_s:.2f} "
            f"| {100 * row.difference:+.1f} % |"
        )


if __name__ == "__main__":
    for line in lines(compare(SETTINGS)):
        print(line, flush=True)
