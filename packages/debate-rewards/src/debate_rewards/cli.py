"""The `debate-rewards` command: score, verify and stats."""

import argparse
import json
import reprlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from debate_protocol.command_line import (
    BAD_USAGE,
    DONE,
    FAILED,
    UsageError,
    add_options,
    complain,
    heed_options,
    opened,
    run_command,
    transcripts_in,
)
from debate_protocol.parsing import get_contract
from debate_protocol.plugins import did_you_mean
from debate_protocol.transcripts.files import json_lines, to_json
from debate_protocol.transcripts.showing import escaped_json
from debate_protocol.types import Question, Transcript
from debate_rewards.answer_checking import (
    LIMIT_S,
    Verdict,
    accepted_answers,
    check,
    check_many,
    kind_of,
)
from debate_rewards.answers.reply import KINDS, Kind
from debate_rewards.decisions import majority
from debate_rewards.metrics import debate_statistics
from debate_rewards.reward import Reward, Score, check_turns, known_mean, score_debates
from debate_rewards.rewards import REWARDS, weighted_sum

EXPECTED = '"id", "gold" and "prediction"'


@dataclass(config=ConfigDict(coerce_numbers_to_str=True))
class Pair:
    """One line of `verify`'s input, with what the kind of answer needs to know."""

    id: Any
    gold: str | None
    prediction: str | None
    choices: list[str] | dict[str, str] | None = None
    accept: list[str] | None = None

    def question(self, kind: Kind) -> Question:
        """Return the question that the prediction answers."""
        meta = {"kind": kind, "choices": self.choices, "accept": self.accept}
        return Question(str(self.id), "", self.gold, meta)


_PAIR = TypeAdapter(Pair)


def pairs_in(file: str) -> list[Pair]:
    """Read answers to verify, one object a line; `choices` and `accept` may stand in it.

    Raises:
        UsageError: The file, or a line of it, cannot be read, or it holds none.
    """
    pairs = []
    with opened(file) as (stream, name):
        for number, row, _ in json_lines(stream, name):
            where = f"{name}:{number}"
            if isinstance(row, Exception):
                raise UsageError(str(row))
            if not isinstance(row, dict):
                raise UsageError(f"{where}: expected an object with {EXPECTED}")
            try:
                pairs.append(_PAIR.validate_python(row))
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                key, found = first["loc"][0], reprlib.repr(first["input"])
                if first["type"] == "missing":
                    raise UsageError(f"{where}: {key!r} is missing; expected {EXPECTED}") from None
                is_list = key in ("choices", "accept")
                expected = "a list of texts" if is_list else "a text or null"
                raise UsageError(f"{where}, {key}: found {found}, expected {expected}") from None
    if not pairs:
        raise UsageError(f"{name}: found no answers, expected one a line with {EXPECTED}")
    return pairs


NAME = "debate-rewards"
_VERIFY_CHUNK = 256
_MAX_LIMIT_S = 86400.0
_TRANSCRIPTS = "transcripts, one a line, or -"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 failed, 2 bad usage, 130 interrupted."""

    def run() -> int:
        arguments = command_parser().parse_args(argv)
        heed_options(arguments)
        try:
            arguments.run(arguments)
        except ValueError as error:
            complain(NAME, error)
            return BAD_USAGE
        except RuntimeError as error:
            complain(NAME, error)
            return FAILED
        return DONE

    return run_command(NAME, run)


def command_parser() -> argparse.ArgumentParser:
    """Return what the command takes."""
    parser = argparse.ArgumentParser(
        prog=NAME, description="Score debates, verify answers, print statistics."
    )
    add_options(parser, "debate_rewards")
    commands = parser.add_subparsers(required=True, metavar="score | verify | stats")
    score = commands.add_parser("score", help="one JSON line of credits per debate")
    score.add_argument("file", metavar="TRANSCRIPTS.jsonl", help=_TRANSCRIPTS)
    score.add_argument("--reward", required=True, metavar="NAME", help=", ".join(REWARDS))
    score.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="a field of the reward; the value is JSON or plain text; dots reach inside",
    )
    score.add_argument(
        "--transcripts",
        action="store_true",
        help="print the transcripts instead, with reward and rightness as numbers in `meta`, for "
        "debate-protocol export",
    )
    score.set_defaults(run=_score)
    verify = commands.add_parser("verify", help="one JSON line of verdict per prediction")
    verify.add_argument(
        "file",
        metavar="FILE.jsonl",
        help='lines {"id", "gold", "prediction"[, "choices", "accept"]}, or -',
    )
    verify.add_argument("--kind", choices=KINDS, default="math")
    verify.add_argument("--limit-s", type=float, default=LIMIT_S, help="time limit per answer")
    verify.set_defaults(run=_verify)
    stats = commands.add_parser("stats", help="statistics of all debates, with intervals")
    stats.add_argument("file", metavar="TRANSCRIPTS.jsonl", help=_TRANSCRIPTS)
    stats.add_argument("--seed", type=int, default=0, help="draws among equals and resamples")
    stats.add_argument("--level", type=float, default=0.95, help="coverage of the intervals")
    stats.set_defaults(run=_stats)
    for one in commands.choices.values():
        add_options(one, "debate_rewards", part=True)
    return parser


def _score(arguments: argparse.Namespace) -> None:
    reward = build_reward(arguments.reward, arguments.set)
    transcripts = list(transcripts_in(NAME, arguments.file))
    scores = score_debates(reward, transcripts)
    if arguments.transcripts:
        scored = (scored_transcript(*pair) for pair in zip(transcripts, scores, strict=True))
        _print_lines(map(to_json, scored))
        return
    _print_lines(score_line(*pair) for pair in zip(transcripts, scores, strict=True))


def _verify(arguments: argparse.Namespace) -> None:
    if not 0 < arguments.limit_s <= _MAX_LIMIT_S:
        raise UsageError(
            f"--limit-s: found {arguments.limit_s:g}, expected more than 0 and at most "
            f"{_MAX_LIMIT_S:g} seconds"
        )
    pairs = pairs_in(arguments.file)
    for start in range(0, len(pairs), _VERIFY_CHUNK):
        chunk = pairs[start : start + _VERIFY_CHUNK]
        asked = [(pair.question(arguments.kind), pair.prediction) for pair in chunk]
        verdicts = check_many(asked, limit_s=arguments.limit_s)
        _print_lines(
            {"id": pair.id} | _verdict_fields(verdict)
            for pair, verdict in zip(chunk, verdicts, strict=True)
        )


def _verdict_fields(verdict: Verdict) -> dict[str, object]:
    """Return a verdict as it is printed: `detail` only where it says something."""
    fields = asdict(replace(verdict, seconds=round(verdict.seconds, 6)))
    return {name: value for name, value in fields.items() if name != "detail" or value}


def _stats(arguments: argparse.Namespace) -> None:
    if not 0 < arguments.level < 1:
        raise UsageError(f"--level: found {arguments.level:g}, expected between 0 and 1")
    transcripts = list(transcripts_in(NAME, arguments.file))
    for transcript in transcripts:
        # A run only counts what it cannot measure; statistics of a file refuse it.
        check_turns(transcript)
        accepted_answers(transcript.question)
        kind_of(transcript.question)
        get_contract(transcript.protocol.contract)
    found = debate_statistics(transcripts, arguments.seed, arguments.level)
    report = {
        "debates": len(transcripts),
        "questions": len({transcript.question.id for transcript in transcripts}),
        "seed": arguments.seed,
        "level": arguments.level,
        "metrics": {name: estimate.value for name, estimate in found.items()},
        "intervals": {name: [e.value, e.low, e.high] for name, e in found.items()},
    }
    print(json.dumps(report, indent=2))


def build_reward(name: str, settings: Sequence[str]) -> Reward:
    """Return the reward of this name with `field=value` settings.

    Raises:
        UsageError: Unknown name or field, or a value that does not fit.
    """
    if name not in REWARDS:
        raise UsageError(f"--reward: found {name!r}, expected {_expected(name, REWARDS)}")
    fields: dict[str, Any] = {"type": name}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not all(key.split(".")):
            raise UsageError(f"--set: found {setting!r}, expected FIELD=VALUE")
        if key == "type":
            raise UsageError("--set type: the reward is named by --reward")
        *path, last = key.split(".")
        place = fields
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise UsageError(f"--set {key}: {part} is a value and has no fields")
        place[last] = _value(text)
    try:
        return REWARDS.make(name, fields)
    except ValidationError as error:
        raise UsageError(_explain(error, name)) from None


def score_line(transcript: Transcript, score: Score) -> dict[str, object]:
    """Return the line that `score` prints for one debate.

    Streams hold values of whole turns; those of a mixed reward are summed by weight.
    """
    names = list(dict.fromkeys(credit.stream for credit in score.credits))
    values: dict[tuple[int, int, str], list[tuple[float | None, float]]] = {}
    for credit in score.credits:
        if credit.span is None:
            key = (credit.agent, credit.round, credit.stream)
            values.setdefault(key, []).append((credit.value, credit.weight))
    turns = []
    for agent, round_ in (turn.key for turn in transcript.turns):
        streams = {name: weighted_sum(values.get((agent, round_, name), [])) for name in names}
        turns.append({"agent": agent, "round": round_, "streams": streams})
    return {
        "id": transcript.id,
        "agents": list(score.agents),
        "turns": turns,
        "metrics": dict(score.metrics),
    }


def scored_transcript(transcript: Transcript, score: Score) -> Transcript:
    """Return a debate with its scores in `meta`.

    `reward` is the mean of the agents' returns, `reward/agent_N` each of them, and `right` whether
    the answer of most agents is the question's. What is not known is not there.
    """
    numbers: dict[str, float | None] = {"reward": known_mean(score.agents)}
    for agent, value in enumerate(score.agents):
        numbers[f"reward/agent_{agent}"] = value
    verdict = check(transcript.question, majority(transcript, seed=0)).verdict
    numbers["right"] = {"right": 1.0, "wrong": 0.0}.get(verdict)
    known = {name: number for name, number in numbers.items() if number is not None}
    return replace(transcript, meta={**transcript.meta, **known})


def _explain(error: ValidationError, name: str) -> str:
    first = error.errors(include_url=False)[0]
    # Pydantic names the chosen variant of a union too; the user did not type that.
    variants = [name, *(part for part in first["loc"] if part in REWARDS)]
    place = [str(part) for part in first["loc"] if part not in REWARDS]
    where, reward = f"--set {'.'.join(place)}", str(variants[-1])
    if first["type"] == "missing":
        return f"{where}: {reward} needs this field"
    if first["type"] == "extra_forbidden":
        known = [field for field in REWARDS[reward].model_fields if field != "type"]
        return f"{where}: {reward} has no such field, expected {_expected(place[-1], known)}"
    return f"{where}: found {first['input']!r}; {first['msg'][0].lower()}{first['msg'][1:]}"


def _expected(found: str, names: Iterable[str]) -> str:
    known = list(names)
    return f"one of {', '.join(known)}{did_you_mean(found, known)}"


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _print_lines(rows: Iterable[dict[str, object]]) -> None:
    for row in rows:
        print(escaped_json(json.dumps(row)))
    sys.stdout.flush()
