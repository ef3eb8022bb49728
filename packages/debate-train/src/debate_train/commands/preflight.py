"""`debate-preflight`: whether a start can learn, judged by `monitoring.preflight_checks.CHECKS`."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from debate_protocol.plugins import did_you_mean
from debate_rewards.what_if import sampling_deviation, truth_advice
from debate_rewards.what_if_command import check_seed_options
from debate_train.checkpoints.run_directory import plain
from debate_train.commands.evaluate import named_policy
from debate_train.commands.options import preflight_parser
from debate_train.commands.recipe_command import (
    DONE,
    FAILED,
    CheckedRecipe,
    command,
    run_recipe,
)
from debate_train.errors import UsageError
from debate_train.monitoring.preflight_checks import Result, results, verdict, wanted
from debate_train.recipe.check import check
from debate_train.recipe.refusals import Launch, refuse

if TYPE_CHECKING:
    from debate_train.commands.preflight_measuring import Measured
    from debate_train.recipe import Recipe

QUESTIONS_OF = {"train": "training", "dev": "dev"}
# Prefixes of figures without bounds in any check.
_UNBOUNDED = (
    "offline/",
    "context/longest",
    "memory/peak_gib",
    "tokens_per_s",
    "time/play_s",
    "time/train_s",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    return command("debate-preflight", preflight_parser(), argv, _main)


def _main(arguments: argparse.Namespace) -> int:
    if arguments.seed_deviation is not None:
        check_seed_options(arguments.truth_gain, arguments.seed_deviation)
    return run_recipe(arguments, check, partial(_act, arguments), opening=lambda _: ())


def _act(arguments: argparse.Namespace, checked: CheckedRecipe) -> int:
    # These import torch, which --check and a wrong recipe need not wait for.
    from debate_train.commands.preflight_measuring import measure
    from debate_train.running.step_metrics import facts_of

    phase_name, phase = _phase(checked.recipe, arguments.phase)
    # The whole recipe, because a phase may compare itself with one before it (keep_if.since).
    refuse(checked.recipe, Launch(is_here=True))
    counts_by_sampling = arguments.truth_gain is not None and arguments.seed_deviation is None
    if counts_by_sampling and not phase.evaluation.questions:
        raise UsageError(
            "--truth-gain: found evaluation.questions 0, which leaves no sampling to count seeds "
            "by; expected --seed-deviation, too"
        )
    policy = None if arguments.policy is None else named_policy(arguments.policy)
    policy_name = "the recipe's model" if policy is None else policy.source
    measured = measure(
        phase,
        arguments.questions,
        policy,
        with_update=not arguments.no_update,
        split=arguments.split,
    )
    check_results = list(results(facts_of(phase), measured.figures, measured.intervals))
    worst = verdict(check_results)

    statuses = [result.status for result in check_results]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in ("red", "amber", "green"))
    print(
        f"{'no-go' if worst == 'red' else 'go'}: {counts}; preflight of phase {phase_name}: "
        f"{measured.questions} {QUESTIONS_OF[arguments.split]} questions, {policy_name}"
    )
    signal_lines = _signal_lines(measured, phase, arguments.truth_gain, arguments.seed_deviation)
    check_lines = [_check_line(result) for result in check_results]
    print(*check_lines, *signal_lines, *_unbounded_lines(measured.figures, phase), sep="\n")

    if arguments.json is not None:
        content = {
            "phase": phase_name,
            "policy": policy_name,
            "questions": measured.questions,
            "split": arguments.split,
            "verdict": worst,
            "checks": [asdict(result) for result in check_results],
            "figures": measured.figures,
        }
        try:
            arguments.json.write_text(json.dumps(plain(content), indent=2) + "\n")
        except OSError as error:
            raise UsageError(f"--json: cannot write {arguments.json}: {error.strerror}") from error
    return FAILED if worst == "red" else DONE


def _phase(recipe: "Recipe", name: str | None) -> "tuple[str, Recipe]":
    """Look up a phase by name, or the first phase with debates of the policy.

    Raises:
        UsageError: There is no such phase.
    """
    playing = {
        phase_name: phase
        for phase_name, phase in recipe.phase_recipes().items()
        if phase.rollout.engine.is_sampled
        and phase.steps
        and (phase.offline is None or phase.offline.path is None)
    }
    if name is None and playing:
        return next(iter(playing.items()))
    if name in playing:
        return name, playing[name]
    raise UsageError(
        f"--phase: found {name!r}; expected one that plays debates with the policy: "
        f"{', '.join(playing) or 'there is none'}{did_you_mean(name or '', playing)}"
    )


def _check_line(result: Result) -> str:
    """Write a check's figure, and advice where it missed a bound."""
    interval = "" if result.low is None else f" [{result.low:.3f}, {result.high:.3f}]"
    line = f"  {result.status:5}  {result.name}: {result.value:.3f}{interval}"
    if result.bound is None:
        return line
    return f"{line}, expected {wanted(result)}: {result.advice}"


def _signal_lines(
    measured: "Measured", phase: "Recipe", truth_gain: float | None, deviation: float | None
) -> list[str]:
    """Write how far the reward's values follow the truth, and how much text they move."""
    replay = measured.replay
    if replay is None:
        return []
    text = f"text with an advantage: {replay.signal:.2f}"
    lines = [f"  {text}; questions without any: {replay.dead_questions:.2f}"]
    evaluation = phase.evaluation
    num_replies = evaluation.questions * evaluation.direct_samples * evaluation.runs
    accuracy = measured.figures.get(
        "eval/direct/accuracy", measured.figures.get("train/accuracy/round_0")
    )
    if deviation is None and truth_gain is not None and accuracy is not None and replay.truth:
        expected_gain = replay.truth.value * truth_gain
        deviation = sampling_deviation(accuracy + expected_gain, num_replies)
    truth_line = truth_advice(replay, truth_gain, deviation, evaluation.questions or None)
    if truth_line is not None:
        lines.insert(0, f"  {truth_line}")
    return lines


def _unbounded_lines(figures: Mapping[str, float], phase: "Recipe") -> list[str]:
    """List the figures without bounds: examples, memory, time."""
    lines = []
    for name, value in figures.items():
        if name.startswith(_UNBOUNDED):
            number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
            lines.append(f"  {name}: {number}")
    # Where no update was made, or it did not fit, its time is unknown.
    left_out = "evaluations" if "time/train_s" in figures else "updates and evaluations"
    hours = f"about {figures['time/hours']:.2f} hours without {left_out}"
    lines.append(f"  {phase.steps:,} steps in {hours}")
    return lines
