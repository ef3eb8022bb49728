"""`debate-rewards what-if`: recorded debates scored again by every reward, as a table."""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from debate_protocol.command_line import UsageError, transcripts_in
from debate_protocol.transcripts.showing import escaped, escaped_json
from debate_protocol.types import Transcript

# What scores debates is imported where they are scored: help and a mistyped option need none of it.
if TYPE_CHECKING:
    from debate_rewards.reward import Reward
    from debate_rewards.what_if import RewardReplay

# One of each kind of signal: votes four ways, votes as wins, the majority, verified answers.
DEFAULT_REWARDS = (
    "v2",
    "v2:pool=answer",
    "v2:consensus=peer_prediction",
    "bradley_terry",
    "win_rate",
    "majority",
    "verifiable",
)
NUM_SHOWN_CHARACTERS = 200


def add_what_if(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `what-if`."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="RUN|FILE",
        help="a run directory, a folder of transcripts, transcripts as JSON Lines, or - "
        "(a page, and rollouts of other programs: debate-report FILE --what-if)",
    )
    add_replay_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per reward")
    parser.set_defaults(run=_run)


def add_replay_options(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the choice of rewards and debates, and what counts seeds, to a parser."""
    parser.add_argument(
        "--reward",
        action="append",
        metavar="NAME[:FIELD=VALUE,...]",
        help="a reward to replay, with its fields; the first is the one that the others are "
        f"compared with (default: {', '.join(DEFAULT_REWARDS)})",
    )
    parser.add_argument("--phase", metavar="NAME", help="transcripts of this phase of a run alone")
    parser.add_argument("--seed", type=int, default=0, help="resamples of the intervals")
    parser.add_argument(
        "--truth-gain",
        type=float,
        metavar="D",
        help="what verified answers would gain, to count seeds (needs --seed-deviation)",
    )
    parser.add_argument(
        "--seed-deviation",
        type=float,
        metavar="S",
        help="standard deviation over seeds of a difference of two arms",
    )


def named_rewards(texts: Sequence[str]) -> "dict[str, Reward]":
    """Build the rewards of `NAME:FIELD=VALUE,...` by these texts."""
    from debate_rewards.score_commands import build_reward

    rewards = {}
    for text in texts:
        name, colon, fields = text.partition(":")
        rewards[text] = build_reward(name, fields.split(",") if colon else [])
    return rewards


def check_seed_options(truth_gain: float | None, deviation: float | None) -> None:
    """Check that the two numbers that count seeds come together.

    Raises:
        UsageError: One of them is missing.
    """
    if (truth_gain is None) != (deviation is None):
        raise UsageError("--truth-gain and --seed-deviation: found one of them, expected both")


def _run(arguments: argparse.Namespace) -> None:
    from debate_rewards.what_if import what_if

    check_seed_options(arguments.truth_gain, arguments.seed_deviation)
    rewards = named_rewards(arguments.reward or DEFAULT_REWARDS)
    transcripts = _transcripts(arguments.command, arguments.files, arguments.phase)
    replays = what_if(transcripts, rewards, seed=arguments.seed)
    if arguments.json:
        for replay in replays:
            print(escaped_json(json.dumps(asdict(replay) | {"r_squared": replay.r_squared})))
        return
    num_questions = len({transcript.question.id for transcript in transcripts})
    print(f"{len(transcripts):,} debates of {num_questions:,} questions")
    for line in _lines(replays, arguments.truth_gain, arguments.seed_deviation):
        print(line)


def _transcripts(command: str, files: Sequence[str], phase: str | None) -> list[Transcript]:
    """Read all transcripts of files, folders and run directories.

    Raises:
        UsageError: A folder has no file of transcripts, or a file cannot be read.
    """
    transcripts: list[Transcript] = []
    for name in files:
        paths = [name]
        if Path(name).is_dir():
            folder = Path(name)
            if (folder / "transcripts").is_dir():
                folder = folder / "transcripts"
            pattern = "*.jsonl" if phase is None else f"{phase}-*.jsonl"
            paths = sorted(str(path) for path in folder.glob(pattern))
            if not paths:
                raise UsageError(f"{folder}: found no file {pattern}, expected transcripts")
        for path in paths:
            transcripts += transcripts_in(command, path)
    return transcripts


def _lines(
    replays: "Sequence[RewardReplay]", truth_gain: float | None, deviation: float | None
) -> Iterator[str]:
    from debate_rewards.what_if import advice, write_r_squared

    width = max(len(replay.name) for replay in replays)
    usable = [replay for replay in replays if replay.problem is None]
    yield ""
    yield (
        f"{'reward':{width}}  R² with truth [95 %]  answers  text with signal  dead questions"
        "  share of the gradient"
    )
    for replay in usable:
        shares = replay.stream_shares or {}
        yield (
            f"{replay.name:{width}}  {write_r_squared(replay):20}  {replay.num_answers:7,}  "
            f"{replay.signal:16.2f}  {replay.dead_questions:14.2f}  "
            + ", ".join(f"{stream} {share:.2f}" for stream, share in shares.items())
        )
    yield from _habit_lines(usable, width)
    yield from _disagreement_lines(usable)
    yield ""
    for replay in usable:
        yield from advice(replay, truth_gain, deviation)
    for replay in replays:
        if replay.problem is not None:
            yield f"{replay.name}: no values: {escaped(replay.problem)}"


def _habit_lines(replays: "Sequence[RewardReplay]", width: int) -> Iterator[str]:
    """Show what judges earn who vote without reading, beside what was recorded."""
    from debate_rewards.what_if import HABITS

    judged = [replay for replay in replays if replay.recorded_judging is not None]
    if not judged:
        return
    yield ""
    yield "mean value of a judge: recorded, and voting by a habit among the recorded peers"
    columns = ["recorded", *HABITS]
    yield f"{'':{width}}  " + "  ".join(f"{name:>12}" for name in columns)
    for replay in judged:
        values = [replay.recorded_judging, *(replay.habits or {}).values()]
        cells = ["" if value is None else f"{value:+.3f}" for value in values]
        yield f"{replay.name:{width}}  " + "  ".join(f"{cell:>12}" for cell in cells)


def _disagreement_lines(replays: "Sequence[RewardReplay]") -> Iterator[str]:
    for replay in replays:
        disagreement = replay.disagreement
        if disagreement is None or not disagreement.num_turns:
            continue
        yield ""
        yield (
            f"{replay.name} beside {disagreement.other}: {disagreement.num_changed:,} of "
            f"{disagreement.num_turns:,} advantages change their sign"
        )
        for change in disagreement.examples:
            rightness = {True: "right", False: "wrong", None: "not known"}[change.is_right]
            text = " ".join(change.text.split())[:NUM_SHOWN_CHARACTERS]
            yield (
                f"  {escaped(change.debate)}, agent {change.key.agent}, "
                f"round {change.key.round + 1}, {change.stream} "
                f"{'-' if change.first < 0 else '+'} -> {'-' if change.second < 0 else '+'}, "
                f"answer {rightness}: {escaped(text)}"
            )
