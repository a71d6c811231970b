"""Finished runs side by side: how their plans differ, and the main numbers of each policy."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.lab.experiments.result import Result
from sa_atp.lab.experiments.run import SWEEP, load
from sa_atp.lab.plans.plan import placed
from sa_atp.lab.report import comparing, stats
from sa_atp.lab.report.comparing import Comparison
from sa_atp.lab.report.stats import PolicyStats

MACHINE = ("commit", "python", "kernel", "machine", "cpus")
"""Entries of manifests on which times may depend, beside the versions of packages."""


@dataclass(frozen=True)
class RunToCompare:
    """A finished run under a short name."""

    name: str
    result: Result

    @cached_property
    def found(self) -> dict[str, PolicyStats]:
        """The statistics of each policy, by name."""
        return {each.policy: each for each in stats.policies(self.result.records)}


def load_runs(folders: Sequence[Path]) -> list[RunToCompare]:
    """Loads runs. Raises: UserError: there are fewer than two folders, one is given twice, or has no finished run."""
    if len(folders) < 2:
        raise UserError(f"{folders[0]}: expected two or more runs to compare")
    real = [os.path.realpath(folder) for folder in folders]
    for n, folder in enumerate(folders):
        if real[n] in real[:n]:
            raise UserError(f"{folder}: given twice")
        if (folder / SWEEP).is_file():
            raise UserError(f"{folder}: the folder of a sweep: name its points, which are in {folder / 'points'}")
    results = [load(folder) for folder in folders]
    names = _names([Path(each) for each in real])
    return [RunToCompare(name, result) for name, result in zip(names, results, strict=True)]


def _names(paths: Sequence[Path]) -> list[str]:
    """The ends of paths, with as many folders as make them differ."""
    for count in range(1, max(len(path.parts) for path in paths)):
        names = ["/".join(path.parts[-count:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def plan_differences(runs: Sequence[RunToCompare]) -> dict[str, list[Any]]:
    """Returns keys in which plans differ ("run.steps"), with each run's value; None: its plan does not have the key."""
    plans = []
    for run in runs:
        records = run.result.records
        tables = placed(records.plan_as_run, records.backend, records.switch).as_dict()
        plans.append({f"{name}.{key}": value for name, table in tables.items() for key, value in table.items()})
    return _differences(plans)


def machine_differences(runs: Sequence[RunToCompare]) -> dict[str, list[Any]]:
    """Returns differences of machines, commits and versions, as `plan_differences` does: they may be why times differ."""
    known = []
    for run in runs:
        manifest = run.result.records.manifest
        versions = manifest.get("versions")
        known.append({key: manifest.get(key) for key in MACHINE} | (versions if isinstance(versions, dict) else {}))
    return _differences(known)


def _differences(known: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    rows = {key: [each.get(key) for each in known] for key in dict.fromkeys(key for each in known for key in each)}
    return {key: values for key, values in rows.items() if any(value != values[0] for value in values)}


def policies_of(runs: Sequence[RunToCompare]) -> list[str]:
    """The policies of all runs, each once, in the order of the first run that has it."""
    return list(dict.fromkeys(policy for run in runs for policy in run.result.summary["policies"]))


def against_first(runs: Sequence[RunToCompare], run: RunToCompare, policy: str) -> Comparison | None:
    """Compares a policy's iteration times with those of the first run; None: one has none, or it is the first itself.

    Repetitions of the same number are paired, as within a run.
    """
    first = runs[0]
    if run is first or policy not in first.found or policy not in run.found:
        return None
    doubtful = next((r for r in (first, run) if comparing.may_be_chance(r.result.records)), first)
    return comparing.iterations(doubtful.result.records, first.found[policy], run.found[policy])


def as_json(runs: Sequence[RunToCompare]) -> dict[str, Any]:
    """The comparison, ready for JSON. Times in seconds."""
    return {
        "runs": [{"name": run.name, "folder": str(run.result.folder)} for run in runs],
        "plans": plan_differences(runs),
        "machines": machine_differences(runs),
        "policies": {
            policy: [numbers_of(runs, run, policy) for run in runs if policy in run.found]
            for policy in policies_of(runs)
        },
    }


def numbers_of(runs: Sequence[RunToCompare], run: RunToCompare, policy: str) -> dict[str, Any]:
    """The main numbers of a policy in a run; null in JSON where there is none."""
    each, comparison = run.result.summary["policies"][policy], run.result.summary["comparison"]
    how = against_first(runs, run, policy)
    return {
        "run": run.name,
        "iteration_time_s": each["iteration_time_s"]["mean"],
        "iteration_time_ci95": each["iteration_time_s"]["mean_ci95"],
        "verdict": how.verdict if how else None,
        "iteration_time_reduction": how.reduction if how else None,
        "speedup": comparison["speedup"].get(policy),
        "ratio_to_fluid_bound": each["ratio_to_fluid_bound"],
        "final_loss": each["final_loss"],
        "final_accuracy": each["final_accuracy"],
        "time_to_accuracy_s": each["time_to_accuracy_s"],
        "sums_wrong": each["sums_wrong"],
    }
