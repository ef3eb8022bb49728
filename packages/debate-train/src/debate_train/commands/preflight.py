"""`debate-preflight`: whether a start can learn, judged by `monitoring.health.CHECKS`."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from debate_protocol.plugins import did_you_mean
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
from debate_train.monitoring.health import Result, results, verdict, wanted
from debate_train.recipe.check import check

if TYPE_CHECKING:
    from debate_train.recipe import Recipe


_UNBOUNDED = (
    "offline/",
    "context/longest",
    "memory/peak_gib",
    "tokens_per_s",
    "time/play_s",
    "time/train_s",
)
"""How names of figures begin that no check has bounds for."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command("debate-preflight", preflight_parser(), argv, _main)


def _main(arguments: argparse.Namespace) -> int:
    return run_recipe(arguments, check, partial(_act, arguments), says_plan=arguments.check)


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
    print(*map(_line, found), *_lines(measured.figures, phase), sep="\n")
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


def _lines(figures: Mapping[str, float], phase: "Recipe") -> list[str]:
    """Return what has no bounds: examples, memory, time."""
    others = [name for name in figures if name.startswith(_UNBOUNDED)]
    left_out = "evaluations" if "time/train_s" in figures else "updates and evaluations"
    hours = f"about {figures['time/hours']:.2f} hours without {left_out}"
    return [
        *(f"  {name}: {_written(figures[name])}" for name in others),
        f"  {phase.steps:,} steps in {hours}",
    ]


def _written(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
