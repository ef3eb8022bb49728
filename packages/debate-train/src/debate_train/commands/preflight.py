"""`debate-preflight`: whether a start can learn, judged by `monitoring.health.CHECKS`."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from debate_protocol.plugins import did_you_mean
from debate_train.checkpoints.run_directory import plain
from debate_train.commands.evaluate import named_policy
from debate_train.commands.recipe_command import (
    DONE,
    FAILED,
    CheckedRecipe,
    command,
    recipe_parser,
    run_recipe,
)
from debate_train.interrupts import UsageError
from debate_train.monitoring.health import Result, results, verdict, wanted
from debate_train.recipe.check import check

if TYPE_CHECKING:
    from debate_train.commands.preflight_measuring import Measured
    from debate_train.recipe import Recipe


_DESCRIPTION = """\
Measure whether a recipe's start can learn from its debates, on some training questions.

Debates are played with the recipe's engine and model, scored by its reward, and one update is
made, of which nothing is kept. Each figure is green, amber or red, with what to do about it."""

_EPILOG = """\
example: debate-preflight quickstart --policy runs/first@280 --json preflight.json

The exit code is 0 where nothing is red, 1 where something is."""

_QUESTIONS = 64
_CAUSES = {
    "signal/value": "learned from",
    "signal/penalty": "only that some turns failed",
    "signal/none": "nothing: no values",
    "signal/equal": "nothing: all values equal",
    "signal/other": "nothing: otherwise",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command("debate-preflight", command_parser(), argv, _main)


def _main(arguments: argparse.Namespace) -> int:
    if arguments.questions < 1:
        raise UsageError(f"--questions: found {arguments.questions}; expected at least 1")
    act = partial(_act, arguments)
    return run_recipe(arguments, check, act, says_plan=arguments.check)


def _act(arguments: argparse.Namespace, checked: CheckedRecipe) -> int:
    from debate_train.commands.preflight_measuring import measure
    from debate_train.running.step_metrics import facts_of

    name, phase = _phase(checked.recipe, arguments.phase)
    policy = None if arguments.policy is None else named_policy(arguments.policy)
    measured = measure(phase, arguments.questions, policy, with_update=not arguments.no_update)
    found = list(results(facts_of(phase), measured.figures, measured.intervals))
    who = "the recipe's model" if policy is None else policy.source
    colour = verdict(found)
    counts = {c: sum(one.status == c for one in found) for c in ("red", "amber", "green")}
    said = ", ".join(f"{count} {c}" for c, count in counts.items())
    print(
        f"{'no-go' if colour == 'red' else 'go'}: {said}; preflight of phase {name}: "
        f"{measured.questions} training questions, {who}"
    )
    print(*map(_line, found), *_lines(measured, phase), sep="\n")
    if arguments.json is not None:
        content = {
            "phase": name,
            "policy": who,
            "questions": measured.questions,
            "verdict": colour,
            "checks": [asdict(one) for one in found],
            "figures": measured.figures,
        }
        try:
            arguments.json.write_text(json.dumps(plain(content), indent=2) + "\n")
        except OSError as error:
            raise UsageError(f"--json: cannot write {arguments.json}: {error.strerror}") from error
    return FAILED if colour == "red" else DONE


def _phase(recipe: "Recipe", named: str | None) -> "tuple[str, Recipe]":
    """Return the phase of a name, or the first that plays debates with the policy.

    Raises:
        UsageError: There is none.
    """
    playing = {
        name: one
        for name, one in recipe.phase_recipes().items()
        if one.rollout.engine.is_sampled
        and one.steps
        and (one.offline is None or one.offline.path is None)
    }
    found = next(iter(playing), None) if named is None else named
    if found in playing:
        return found, playing[found]
    raise UsageError(
        f"--phase: found {named!r}; expected one that plays debates with the policy: "
        f"{', '.join(playing) or 'there is none'}{did_you_mean(named or '', playing)}"
    )


def _line(found: Result) -> str:
    """Return a line that shows what a check found."""
    interval = "" if found.low is None else f" [{found.low:.3f}, {found.high:.3f}]"
    said = f"  {found.status:5}  {found.name}: {found.value:.3f}{interval}"
    return said if found.bound is None else f"{said}, expected {wanted(found)}: {found.advice}"


def _lines(measured: "Measured", phase: "Recipe") -> list[str]:
    """Return what has no bounds: causes, memory, time."""
    figures = measured.figures
    causes = ", ".join(
        f"{said} {figures[name]:.0%}" for name, said in _CAUSES.items() if name in figures
    )
    lines = [f"  questions: {causes}"] if phase.offline is None else [_examples_line(figures)]
    if "context/longest" in figures:
        lines.append(f"  longest context: {figures['context/longest']:,.0f} tokens")
    lines.append(f"  memory: at most {figures['memory/peak_gib']:.2f} GiB; beside it --plan")
    update = figures.get("time/train_s")
    beside = "updates and evaluations" if update is None else "evaluations"
    lines.append(
        f"  time: {figures.get('tokens_per_s', 0):,.0f} sampled tokens/s; played in "
        f"{figures['time/play_s']:.1f} s, "
        f"{'no update made' if update is None else f'one update {update:.1f} s'}; "
        f"{phase.steps:,} steps in about {figures['time/hours']:.2f} hours without {beside}"
    )
    return lines


def _examples_line(figures: Mapping[str, float]) -> str:
    """Return how many examples there are, of what, and why there are no others."""

    def shown(group: str, form: str) -> str:
        start = f"offline/{group}"
        found = [
            f"{name.removeprefix(start).strip('/_').replace('_', ' ')} {value:{form}}".strip()
            for name, value in figures.items()
            if name.startswith(start) and not name.endswith("_standard_error")
        ]
        return ", ".join(found) or "none"

    values = f"values: {shown('value', ',.3f')}; margins: {shown('margin', ',.3f')}"
    counts = f"examples: {shown('kept', ',.0f')}; left out: {shown('left_out', ',.0f')}"
    return f"  {counts}; {values}; questions with one: {figures['signal/value']:.0%}"


def command_parser() -> argparse.ArgumentParser:
    """Return what the command takes."""
    parser = recipe_parser("debate-preflight", _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    first = "default: the first that plays debates with the policy"
    add("--phase", metavar="NAME", help=first)
    weights = "other weights than the recipe's: RUN_DIR[@STEP] or a checkpoint of its model"
    add("--policy", metavar="POLICY", help=weights)
    count = f"training questions (default: {_QUESTIONS})"
    add("--questions", type=int, default=_QUESTIONS, metavar="N", help=count)
    add("--no-update", action="store_true", help="leave out the update")
    add("--json", type=Path, metavar="FILE", help="write what was found there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
