"""Experiments from Python and notebooks: plans are run, and what came of them is there as records, tables and figures.

    from sa_atp import experiment
    result = experiment.run("demo", {"run.steps": 8}, backend="sim")
    result.summary["comparison"]["speedup"]
    result.to_pandas()
    result.figure("timeline").savefig("timeline.pdf")

`sa-atp run` does the same, with the same folders, so that a run from here can be drawn or gone on with there, and one from
there be loaded here. docs/python.md is a guide.
"""

from sa_atp.lab.experiments.prepared import plans
from sa_atp.lab.experiments.result import Result
from sa_atp.lab.experiments.run import load, load_plan, load_sweep, policies, run, sweep
from sa_atp.lab.experiments.sweep import Mean, Sweep
from sa_atp.lab.maps.run import Map
from sa_atp.lab.maps.run import load as load_map
from sa_atp.lab.maps.run import run as map
from sa_atp.lab.plans.plan import (
    HelpPlan,
    JobPlan,
    NetworkPlan,
    Plan,
    RunPlan,
    SimPlan,
    StragglerPlan,
    SweepPlan,
    SwitchPlan,
    TopologyPlan,
    TrafficPlan,
)
from sa_atp.lab.policies import register
from sa_atp.lab.report.rows import Row

__all__ = [
    "HelpPlan",
    "JobPlan",
    "Map",
    "Mean",
    "NetworkPlan",
    "Plan",
    "Result",
    "Row",
    "RunPlan",
    "SimPlan",
    "StragglerPlan",
    "Sweep",
    "SweepPlan",
    "SwitchPlan",
    "TopologyPlan",
    "TrafficPlan",
    "load",
    "load_map",
    "load_plan",
    "load_sweep",
    "map",
    "plans",
    "policies",
    "register",
    "run",
    "sweep",
]
