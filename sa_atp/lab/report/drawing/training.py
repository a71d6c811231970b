"""training.png and loss.png: accuracy and loss of the model over time, each line as far as its run went."""

from typing import TYPE_CHECKING, Any

from sa_atp.lab.report import stats
from sa_atp.lab.report.drawing import style
from sa_atp.lab.report.text import duration, percent, policy_name, reached
from sa_atp.lab.runs.records import PolicyRun, RunResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT_IN = 3.2
SINCE = "time since the first step began"


def is_evaluated(result: RunResult) -> bool:
    """Whether the model was evaluated on held-out samples in any run."""
    return any(run.evaluations for run in result.runs)


def has_losses(result: RunResult) -> bool:
    """Whether losses were recorded, on held-out samples or in training."""
    return is_evaluated(result) or any(map(training_loss, result.runs))


def accuracy(result: RunResult, axes: "Axes") -> float:
    """Draws accuracy on held-out samples over time, a line for each repetition, the target, and when it was reached."""
    times_s = [each.time_s for run in result.runs for each in run.evaluations]
    unit_s = style.time_axis(axes, "x", 1.02 * max(times_s), SINCE)
    target = result.plan.run.target_accuracy
    for n, policy in enumerate(stats.policies(result)):
        line = style.policy_line(policy.policy, n)
        reached = [time_s / unit_s for time_s in policy.reached_s(target).values()]
        axes.plot(reached, [100 * target] * len(reached), "o", color=line["color"], mec="white", mew=0.5, zorder=5)
        for run in policy.runs:
            points = sorted(run.evaluations, key=lambda each: each.step)
            _line(axes, [(each.time_s / unit_s, 100 * each.accuracy) for each in points], line)
    axes.axhline(100 * target, color=style.BOUND_COLOUR, ls="--", lw=1.0, label=f"target {percent(target)}")
    axes.set_ylabel("held-out accuracy (%)")
    axes.grid(axis="y")
    return HEIGHT_IN


def accuracy_title(result: RunResult) -> str:
    """Time to 90 % accuracy: ATP reached in 3 of 4 repetitions, SA-ATP 1.90 s"""
    target = result.plan.run.target_accuracy
    found = [each for each in stats.policies(result) if any(run.evaluations for run in each.runs)]
    said = [f"{policy_name(each.policy)} {_when(each.times_to_accuracy_s(target))}" for each in found]
    return f"Time to {percent(target)} accuracy: {', '.join(said)}"


def _when(times_s: list[float | None]) -> str:
    """The mean of the repetitions' times; if not all have one, how many have."""
    mean_s = stats.mean_of_all(times_s)
    return reached(len(times_s) - times_s.count(None), len(times_s)) if mean_s is None else duration(mean_s)


def loss(result: RunResult, axes: "Axes") -> float:
    """Draws loss on held-out samples over time, a line for each repetition; training loss if nothing was evaluated."""
    points_of = _held_out_loss if is_evaluated(result) else training_loss
    times_s = [time_s for run in result.runs for time_s, _ in points_of(run)]
    unit_s = style.time_axis(axes, "x", 1.02 * max(times_s), SINCE)
    for n, policy in enumerate(stats.policies(result)):
        for points in map(points_of, policy.runs):
            _line(axes, [(time_s / unit_s, loss) for time_s, loss in points], style.policy_line(policy.policy, n))
    axes.set_ylabel(loss_title(result).lower())
    axes.grid(axis="y")
    axes.set_ylim(bottom=0)
    return HEIGHT_IN


def loss_title(result: RunResult) -> str:
    return "Held-out loss (cross-entropy)" if is_evaluated(result) else "Mean training loss of each step"


def training_loss(run: PolicyRun) -> list[tuple[float, float]]:
    """(end of the step in seconds, mean loss over workers), of the steps that the job has reached."""
    at = stats.step_ends_s(run)
    # a worker ahead of the job has losses of steps that the job never reaches
    return [(at[step], loss) for step, loss in stats.training_loss(run.iterations) if step in at]


def _held_out_loss(run: PolicyRun) -> list[tuple[float, float]]:
    return [(each.time_s, each.loss) for each in sorted(run.evaluations, key=lambda each: each.step)]


def _line(axes: "Axes", points: list[tuple[float, float]], line: dict[str, Any]) -> None:
    """Draws a line with a dot at its end."""
    if points:
        axes.plot(*zip(*points, strict=True), alpha=0.9, marker="o", markevery=[-1], **line)
