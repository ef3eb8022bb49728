"""The `debate-rewards` command: score, verify and stats."""

import argparse
import difflib
import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, TypeAdapter, ValidationError

from debate_protocol.transcripts import read_transcripts
from debate_protocol.types import Question, Transcript
from debate_rewards.answers import LIMIT_S, check_many
from debate_rewards.credits import Reward, Score
from debate_rewards.final_answers import KINDS
from debate_rewards.intervals import bootstrap_interval
from debate_rewards.metrics import statistics
from debate_rewards.mixed import weighted_sum
from debate_rewards.rewards import REWARDS, RewardConfig

_VERIFY_CHUNK = 256


class UsageError(ValueError):
    """The command was called wrongly or its input cannot be read."""


class _Pair(NamedTuple):
    """One line of `verify`'s input."""

    id: object
    gold: str | None
    prediction: str | None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 failed, 2 bad usage, 130 interrupted."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
        sys.stdout.flush()
    except ValueError as error:
        print(f"debate-rewards: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader has seen enough; what is still buffered must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except RuntimeError as error:
        print(f"debate-rewards: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="debate-rewards", description="Score debates, verify answers, print statistics."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    score = commands.add_parser("score", help="one JSON line of credits per debate")
    score.add_argument("file", metavar="TRANSCRIPTS.jsonl")
    score.add_argument("--reward", required=True, metavar="NAME", help=", ".join(REWARDS))
    score.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="a field of the reward; the value is JSON or plain text; dots reach inside",
    )
    score.set_defaults(run=_score)
    verify = commands.add_parser("verify", help="one JSON line of verdict per prediction")
    verify.add_argument(
        "file",
        metavar="FILE.jsonl",
        help='- for standard input; a line is {"id", "gold", "prediction"}',
    )
    verify.add_argument("--kind", choices=KINDS, default="math")
    verify.add_argument("--limit-s", type=float, default=LIMIT_S, help="time limit per answer")
    verify.set_defaults(run=_verify)
    stats = commands.add_parser("stats", help="metrics of all debates with 95 %% intervals")
    stats.add_argument("file", metavar="TRANSCRIPTS.jsonl")
    stats.add_argument("--seed", type=int, default=0, help="draws among equals and resamples")
    stats.set_defaults(run=_stats)
    return parser


def _score(arguments: argparse.Namespace) -> None:
    reward = build_reward(arguments.reward, arguments.set)
    transcripts = _transcripts(arguments.file)
    _print_lines(
        score_line(transcript, score)
        for transcript, score in zip(transcripts, reward(transcripts), strict=True)
    )


def _verify(arguments: argparse.Namespace) -> None:
    if not arguments.limit_s > 0:
        raise UsageError(f"--limit-s: found {arguments.limit_s:g}, expected more than 0")
    pairs = _read_pairs(arguments.file)
    meta = {"kind": arguments.kind}
    for start in range(0, len(pairs), _VERIFY_CHUNK):
        chunk = pairs[start : start + _VERIFY_CHUNK]
        asked = [(Question(str(p.id), "", p.gold, meta), p.prediction) for p in chunk]
        verdicts = check_many(asked, limit_s=arguments.limit_s)
        _print_lines(
            {
                "id": pair.id,
                "verdict": verdict.verdict,
                "reason": verdict.reason,
                "seconds": round(verdict.seconds, 6),
            }
            for pair, verdict in zip(chunk, verdicts, strict=True)
        )


def _stats(arguments: argparse.Namespace) -> None:
    transcripts = _transcripts(arguments.file)
    metrics, values = statistics(transcripts, arguments.seed)
    intervals = {
        name: bootstrap_interval(list(per_question.values()), arguments.seed)
        for name, per_question in values.items()
    }
    report = {
        "debates": len(transcripts),
        "questions": len({transcript.question.id for transcript in transcripts}),
        "metrics": metrics,
        "intervals": intervals,
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
        if not equals or not key:
            raise UsageError(f"--set: found {setting!r}, expected FIELD=VALUE")
        *path, last = key.split(".")
        place = fields
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise UsageError(f"--set {key}: {part} is a value and has no fields")
        place[last] = _value(text)
    adapter: TypeAdapter[Reward] = TypeAdapter(RewardConfig)
    try:
        return adapter.validate_python(fields)
    except ValidationError as error:
        raise UsageError(_explain(error, REWARDS[name])) from None


def score_line(transcript: Transcript, score: Score) -> dict[str, Any]:
    """Return the line that `score` prints for one debate.

    Streams hold values of whole turns; those of a mixed reward are summed by weight.
    """
    names = list(dict.fromkeys(credit.stream for credit in score.credits))
    values: dict[tuple[int, int, str], list[tuple[float | None, float]]] = {}
    for credit in score.credits:
        if credit.span is None:
            key = (credit.agent, credit.round, credit.stream)
            values.setdefault(key, []).append((credit.value, credit.weight))
    return {
        "id": transcript.id,
        "agents": list(score.agents),
        "turns": [
            {
                "agent": turn.agent,
                "round": turn.round,
                "streams": {
                    name: weighted_sum(values.get((turn.agent, turn.round, name), []))
                    for name in names
                },
            }
            for turn in transcript.turns
        ],
        "metrics": dict(score.metrics),
    }


def _explain(error: ValidationError, reward: type[BaseModel]) -> str:
    first = error.errors(include_url=False)[0]
    place = [str(part) for part in first["loc"][1:]]
    where = f"--set {'.'.join(place)}" if place else "--set"
    if first["type"] == "extra_forbidden" and len(place) == 1:
        expected = _expected(place[0], [name for name in reward.model_fields if name != "type"])
        return f"{where}: found a field that {first['loc'][0]} does not have, expected {expected}"
    return f"{where}: found {first['input']!r}; {first['msg'][0].lower()}{first['msg'][1:]}"


def _expected(found: str, names: Iterable[str]) -> str:
    known = list(names)
    near = difflib.get_close_matches(found, known, n=1)
    return f"one of {', '.join(known)}" + (f"; did you mean {near[0]!r}?" if near else "")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _transcripts(file: str) -> list[Transcript]:
    try:
        with warnings.catch_warnings(record=True) as caught:
            transcripts = read_transcripts(Path(file))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror or error}") from None
    for warning in caught:
        print(f"debate-rewards: {warning.message}", file=sys.stderr)
    if not transcripts:
        raise UsageError(f"{file}: found no debates, expected at least one transcript a line")
    return transcripts


def _read_pairs(file: str) -> list[_Pair]:
    pairs = []
    for number, line in _lines(file):
        where = f"{file}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise UsageError(f'{where}: expected an object with "id", "gold" and "prediction"')
        pairs.append(
            _Pair(row.get("id"), _text(row, "gold", where), _text(row, "prediction", where))
        )
    return pairs


def _text(row: dict[str, Any], key: str, where: str) -> str | None:
    """Return a text of a line; numbers are read as they are written, null is None."""
    if key not in row:
        raise UsageError(f'{where}: {key!r} is missing; expected "id", "gold", "prediction"')
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise UsageError(f"{where}, {key}: found {value!r}, expected a text or null")
    return None if value is None else str(value)


def _lines(file: str) -> Iterator[tuple[int, str]]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read: {error}") from None
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line


def _print_lines(rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        print(json.dumps(row))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
