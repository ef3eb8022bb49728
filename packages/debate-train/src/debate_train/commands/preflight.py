"""`debate-preflight`: whether a start can learn, one table of figures, bounds and advice."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import hypot, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from debate_protocol.plugins import did_you_mean
from debate_train.commands.recipe_command import (
    DONE,
    FAILED,
    CheckedRecipe,
    exit_code,
    parsed,
    recipe_parser,
    run_recipe,
)
from debate_train.health.detector import GUIDED, derived
from debate_train.health.detectors import PairSides, PairTruth
from debate_train.interrupts import UsageError

if TYPE_CHECKING:
    from debate_train.commands.preflight_measuring import Measured
    from debate_train.recipe import Recipe


Status = Literal["red", "amber", "green"]
Interval = tuple[float, float]
_ENOUGH = 16
"""Debates of a first step below which nothing is said of it."""
_SIDES, _TRUTH = PairSides(), PairTruth()
_UNGUIDED = (
    "replies do not follow their guidance, so pairs teach nothing of it: look at them in the "
    "debates, and at the prompts that guide; warm-start on guided demonstrations"
)


def _always(recipe: "Recipe") -> bool:
    return True


def _votes(recipe: "Recipe") -> bool:
    return any("votes" in part.needed() for part in recipe.reward.parts().values())


def _peers_alone(recipe: "Recipe") -> bool:
    """Return whether no part of the reward looks at the questions' own answers."""
    needed = [part.needed() for part in recipe.reward.parts().values()]
    return _votes(recipe) and not any("answers" in one for one in needed)


def _judges_learn(recipe: "Recipe") -> bool:
    judge = recipe.advantage.streams.get("judge")
    return "judge" in recipe.reward.streams and judge is not None and judge.weight > 0


def _merges(recipe: "Recipe") -> bool:
    return getattr(recipe.debate, "conversation", "") == "append" and recipe.debate.max_rounds > 1


@dataclass(frozen=True, slots=True)
class Check:
    """One figure and its bounds: beyond `red` do not start, beyond `amber` look at it first."""

    name: str
    metrics: tuple[str, ...]
    """The first that is measured counts."""
    advice: str
    red: float | None = None
    amber: float | None = None
    above: bool = False
    """Whether what lies above the bounds is bad, instead of what lies below."""
    applies: "Callable[[Recipe], bool]" = _always


CHECKS = (
    Check(
        "direct accuracy",
        ("eval/direct/accuracy", "train/accuracy/round_0"),
        "take easier questions, a stronger model, or warm-start on worked solutions",
        red=0.05,
        amber=0.10,
    ),
    Check(
        "head-room",
        ("eval/direct/accuracy", "train/accuracy/round_0"),
        "nearly everything is right already: take harder questions",
        amber=0.95,
        above=True,
    ),
    Check(
        "one of N is right",
        ("train/pass@k",),
        "mostly nobody is right, so comparing teaches nothing: take easier questions, more agents "
        "or warm-start",
        red=0.20,
    ),
    Check(
        "valid comparisons",
        ("train/comparisons_made",),
        "warm-start on demonstrations of comparing, or look at rollout.max_tokens and the contract",
        red=0.80,
        applies=_votes,
    ),
    Check(
        "judge accuracy",
        ("judge/accuracy",),
        "judges are no better than chance: warm-start judging, or mix in correctness "
        "(reward.type: mixed)",
        red=0.50,
        applies=_votes,
    ),
    Check(
        "judge accuracy, votes alone",
        ("judge/accuracy",),
        "votes of judges this weak were not seen to teach: warm-start judging further, or mix in "
        "correctness (reward.type: mixed)",
        amber=0.60,
        applies=_peers_alone,
    ),
    Check(
        "judges' TPR - FPR",
        ("judge/youden",),
        "the right one is named no more often than the wrong one: warm-start judging, or mix in "
        "correctness",
        red=0.0,
        amber=0.2,
        applies=_votes,
    ),
    Check(
        "correlation of judges' errors",
        ("judge/error_correlation",),
        "judges err together, so more of them add little: use personas, other temperatures "
        "or other models as judges",
        amber=0.5,
        above=True,
        applies=_votes,
    ),
    Check(
        "judges of a pair",
        ("v2/judges_per_pair",),
        "a judge's verdict is held against nobody's: take num_agents of 5 or more, or give the "
        "judge stream weight 0",
        amber=2.0,
        applies=_judges_learn,
    ),
    Check(
        "pairs with one judge",
        ("v2/self_consensus_fraction",),
        "a consensus of one is the judge's own verdict: take num_agents of 5 or more",
        amber=0.5,
        above=True,
        applies=_judges_learn,
    ),
    Check(
        "valid format",
        ("train/format_all",),
        "warm-start on demonstrations, or look at rollout.max_tokens and the contract",
        red=0.30,
        amber=0.60,
    ),
    Check(
        "questions with a signal",
        ("signal/value",),
        "most of what is sampled teaches nothing: see the causes; take more agents or debates of "
        "a question, a higher temperature, or questions that are neither too easy nor too hard",
        red=0.05,
        amber=0.20,
    ),
    Check("smaller side of the pairs", ("pairs/smaller_side",), _SIDES.advice, red=_SIDES.below),
    Check("pairs for the truth", ("pairs/truth",), _TRUTH.advice, red=_TRUTH.below),
    Check("value gained by guiding to the right", ("pairs/gained",), _UNGUIDED, red=0.0),
    Check("value lost by guiding to the wrong", ("pairs/lost",), _UNGUIDED, red=0.0),
    Check(
        "replies cut off",
        ("rollout/truncated_fraction",),
        "raise rollout.max_tokens, or teach shorter replies (reward overlong)",
        red=0.50,
        amber=0.10,
        above=True,
    ),
    Check(
        "turns that join a row",
        ("rollout/merged_turn_fraction",),
        "prompts do not extend each other, so each turn is a row of its own and a step costs "
        "more: look at how the chat template treats earlier turns",
        amber=0.01,
        applies=_merges,
    ),
    Check(
        "turns over the window",
        ("context/overflow",),
        "lower rollout.max_tokens, set debate.history_rounds: 1 or max_chars_per_field",
        red=0.02,
        amber=0.0,
        above=True,
    ),
    Check(
        "context used of the window",
        ("context/share",),
        "longer questions may not fit: lower rollout.max_tokens or set debate.history_rounds: 1",
        amber=0.90,
        above=True,
    ),
    Check(
        "memory of one update",
        ("memory/share",),
        "lower trainer.tokens_per_micro_batch, train an adapter (model.lora), or use ZeRO: --plan",
        red=0.98,
        amber=0.90,
        above=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Result:
    """What a check found; `bound` is the bound that it missed, if it missed one."""

    name: str
    status: Status
    value: float
    low: float | None = None
    high: float | None = None
    bound: float | None = None
    advice: str = ""

    def as_json(self) -> dict[str, object]:
        """Return it as JSON holds it."""
        return asdict(self)


def results(
    recipe: "Recipe", figures: Mapping[str, float], intervals: Mapping[str, Interval]
) -> Iterator[Result]:
    """Yield what each check found that applies to the recipe and whose figure was measured."""
    for check in CHECKS:
        name = next((one for one in check.metrics if one in figures), None)
        if name is not None and check.applies(recipe):
            yield judged(check, figures[name], intervals.get(name))


def judged(check: Check, value: float, interval: Interval | None = None) -> Result:
    """Return whether a figure is beyond its bounds; amber too where its interval reaches `red`."""
    low, high = interval or (None, None)
    sign = -1.0 if check.above else 1.0
    worst = value if interval is None else (interval[1] if check.above else interval[0])

    def beyond(figure: float, bound: float | None) -> bool:
        return bound is not None and sign * figure < sign * bound

    if beyond(value, check.red):
        return Result(check.name, "red", value, low, high, check.red, check.advice)
    if beyond(value, check.amber):
        return Result(check.name, "amber", value, low, high, check.amber, check.advice)
    if beyond(worst, check.red):
        return Result(check.name, "amber", value, low, high, check.red, check.advice)
    return Result(check.name, "green", value, low, high)


def verdict(found: "list[Result]") -> Status:
    """Return the worst status of all."""
    seen = {result.status for result in found}
    return "red" if "red" in seen else "amber" if "amber" in seen else "green"


def first_step_warnings(recipe: "Recipe", row: Mapping[str, float]) -> Iterator[str]:
    """Yield a line for each check that a phase's first step, played by its start, misses by red.

    Nothing is said of fewer than 16 debates.
    """
    if row.get("env/all/total_episodes", 0) >= _ENOUGH:
        for found in results(recipe, derived(row), {}):
            if found.status == "red":
                yield f"preflight: {found.name} {found.value:.3g}, expected {_wanted(found)}; " + (
                    found.advice
                )


def intervals_of(figures: Mapping[str, float], pairs: int) -> dict[str, Interval]:
    """Return the intervals, of two standard errors, of what a set of so many pairs teaches."""
    side = figures.get("pairs/smaller_side", 0.0)
    right, natural, wrong = (figures.get(f"{name}_standard_error", 0.0) for name in GUIDED)
    errors = {
        "pairs/smaller_side": sqrt(side * (1 - side) / max(1, pairs)),
        "pairs/gained": hypot(right, natural),
        "pairs/lost": hypot(natural, wrong),
    }
    found = {name: (figures[name], 2 * error) for name, error in errors.items() if name in figures}
    return {name: (value - both, value + both) for name, (value, both) in found.items()}


def _wanted(found: Result) -> str:
    bad_above = next(check.above for check in CHECKS if check.name == found.name)
    return f"{'at most' if bad_above else 'at least'} {found.bound:g}"


def line_of(found: Result) -> str:
    """Return a line that shows what a check found."""
    interval = "" if found.low is None else f" [{found.low:.3f}, {found.high:.3f}]"
    said = f"  {found.status:5}  {found.name}: {found.value:.3f}{interval}"
    return said if found.bound is None else f"{said}, expected {_wanted(found)}: {found.advice}"


_DESCRIPTION = """\
Measure whether a recipe's start can learn from its debates, on some training questions.

Debates are played with the recipe's engine and model, scored by its reward, and one update is
made, of which nothing is kept. Each figure is green, amber or red, with what to do about it."""

_EPILOG = """\
examples:
  debate-preflight recipes/selfplay_v2.yaml
  debate-preflight quickstart --policy runs/first@280
  debate-preflight quickstart --questions 256 --no-update --json preflight.json

exit codes:
  0 go: nothing is red; 1 no-go, or a failure while running; 2 bad usage or recipe;
  130 interrupted"""

_QUESTIONS = 64
_SHOWN = (
    ("learned from", "signal/value"),
    ("only that some turns failed", "signal/penalty"),
    ("nothing: no values", "signal/none"),
    ("nothing: all values equal", "signal/equal"),
    ("nothing: otherwise", "signal/other"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    arguments = parsed(command_parser(), argv)
    return exit_code("debate-preflight", lambda: _main(arguments))


def _main(arguments: argparse.Namespace) -> int:
    if arguments.questions < 1:
        raise UsageError(f"--questions: found {arguments.questions}; expected at least 1")
    from debate_train.recipe.check import check

    return run_recipe(
        arguments, check, lambda checked: _act(checked, arguments), says_plan=arguments.check
    )


def _act(checked: CheckedRecipe, arguments: argparse.Namespace) -> int:
    from debate_train.commands.evaluate import named_policy
    from debate_train.commands.preflight_measuring import measure

    name, phase = _phase(checked.recipe, arguments.phase)
    policy = None if arguments.policy is None else named_policy(arguments.policy)
    measured = measure(phase, arguments.questions, policy, with_update=not arguments.no_update)
    found = list(results(phase, measured.figures, measured.intervals))
    who = "the recipe's model" if policy is None else policy.source
    colour = verdict(found)
    counts = {c: sum(one.status == c for one in found) for c in ("red", "amber", "green")}
    said = ", ".join(f"{count} {c}" for c, count in counts.items())
    print(
        f"{'no-go' if colour == 'red' else 'go'}: {said}; preflight of phase {name}: "
        f"{measured.questions} training questions, {who}"
    )
    print(*map(line_of, found), *_lines(measured, phase), sep="\n")
    if arguments.json is not None:
        _write(arguments.json, name, who, found, measured)
    return FAILED if colour == "red" else DONE


def _phase(recipe: "Recipe", wanted: str | None) -> "tuple[str, Recipe]":
    """Return the phase of a name, or the first that plays debates with the policy.

    Raises:
        UsageError: There is none.
    """
    phases = recipe.phase_recipes()
    playing = {
        name: one
        for name, one in phases.items()
        if one.rollout.engine.is_sampled
        and one.steps
        and (one.offline is None or one.offline.path is None)
    }
    if wanted is None and playing:
        return next(iter(playing.items()))
    if wanted in playing:
        return wanted, playing[wanted]
    if wanted is not None:
        raise UsageError(
            f"--phase: found {wanted!r}; expected one that plays debates with the policy: "
            f"{', '.join(playing) or 'there is none'}{did_you_mean(wanted, playing)}"
        )
    raise UsageError("found no phase that plays debates with the policy; expected one")


def _lines(measured: "Measured", phase: "Recipe") -> list[str]:
    """Return what has no bounds: causes, memory, time."""
    figures = measured.figures
    causes = ", ".join(f"{said} {figures[name]:.0%}" for said, name in _SHOWN if name in figures)
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

    def shown(group: str, digits: int) -> str:
        found = {
            name.removeprefix("offline/").removeprefix(group).strip("/_").replace("_", " "): value
            for name, value in figures.items()
            if name.startswith(f"offline/{group}") and not name.endswith("_standard_error")
        }
        return ", ".join(f"{name} {value:,.{digits}f}".strip() for name, value in found.items())

    parts = {
        "examples": shown("kept", 0) or "none",
        "left out": shown("left_out", 0) or "none",
        "margins": shown("margin", 3),
        "values": shown("value", 3),
        "questions with one": f"{figures['signal/value']:.0%}",
    }
    return "  " + "; ".join(f"{name}: {said}" for name, said in parts.items() if said)


def _write(
    path: Path, name: str, who: str, found: "Sequence[Result]", measured: "Measured"
) -> None:
    from debate_train.checkpointing.directory_layout import plain

    content = {
        "phase": name,
        "policy": who,
        "questions": measured.questions,
        "verdict": verdict(list(found)),
        "checks": [one.as_json() for one in found],
        "figures": measured.figures,
    }
    try:
        path.write_text(json.dumps(plain(content), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--json: cannot write {path}: {error.strerror or error}") from error


def command_parser() -> argparse.ArgumentParser:
    """Return what the command takes."""
    parser = recipe_parser("debate-preflight", _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "--phase", metavar="NAME", help="default: the first that plays debates with the policy"
    )
    parser.add_argument(
        "--policy",
        metavar="POLICY",
        help="weights in the place of the recipe's: RUN_DIR[@STEP] or a checkpoint of its model",
    )
    parser.add_argument(
        "--questions",
        type=int,
        default=_QUESTIONS,
        metavar="N",
        help=f"training questions (default: {_QUESTIONS})",
    )
    parser.add_argument("--no-update", action="store_true", help="leave out the update")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
