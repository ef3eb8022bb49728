"""The subcommands of `debate-rewards` that score, verify and count; `cli` has the command."""

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
    UsageError,
    opened,
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
_VERIFY_CHUNK = 256
_MAX_LIMIT_S = 86400.0
_TRANSCRIPTS = "transcripts, one a line, or -"


@dataclass(config=ConfigDict(coerce_numbers_to_str=True))
class PredictionRow:
    """A line of `verify`'s input, with choices, accepted spellings or a kind."""

    id: Any
    gold: str | None
    prediction: str | None
    choices: list[str] | dict[str, str] | None = None
    accept: list[str] | None = None
    kind: Kind | None = None

    def question(self, kind: Kind | None) -> Question:
        """Build the question that the prediction answers; a given kind goes before the line's."""
        meta = {"kind": kind or self.kind or "math", "choices": self.choices, "accept": self.accept}
        return Question(str(self.id), "", self.gold, meta)


def read_predictions(file: str) -> list[PredictionRow]:
    """Read answers to verify, one object a line; `choices`, `accept` and `kind` are optional.

    Raises:
        UsageError: The file, or a line of it, cannot be read, or it is empty.
    """
    row_type = TypeAdapter(PredictionRow)
    predictions = []
    with opened(file) as (stream, name):
        for number, row, _ in json_lines(stream, name):
            where = f"{name}:{number}"
            if isinstance(row, Exception):
                raise UsageError(str(row))
            if not isinstance(row, dict):
                raise UsageError(f"{where}: expected an object with {EXPECTED}")
            try:
                predictions.append(row_type.validate_python(row))
            except ValidationError as error:
                raise UsageError(_explain_row(error, where)) from None
    if not predictions:
        raise UsageError(f"{name}: found no answers, expected one a line with {EXPECTED}")
    return predictions


def _explain_row(error: ValidationError, where: str) -> str:
    first_error = error.errors(include_url=False)[0]
    key = first_error["loc"][0]
    if first_error["type"] == "missing":
        return f"{where}: {key!r} is missing; expected {EXPECTED}"
    expected = "a list of texts" if key in ("choices", "accept") else "a text or null"
    if key == "kind":
        expected = f"one of {', '.join(KINDS)}"
    return f"{where}, {key}: found {reprlib.repr(first_error['input'])}, expected {expected}"


def add_score(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `score`."""
    parser.add_argument("file", metavar="TRANSCRIPTS.jsonl", help=_TRANSCRIPTS)
    parser.add_argument("--reward", required=True, metavar="NAME", help=", ".join(REWARDS))
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="a field of the reward; the value is JSON or plain text; dots reach inside",
    )
    parser.add_argument(
        "--transcripts",
        action="store_true",
        help="print the transcripts instead, with reward and rightness as numbers in `meta`, for "
        "debate-protocol export",
    )
    parser.set_defaults(run=_score)


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `verify`."""
    parser.add_argument(
        "file",
        metavar="FILE.jsonl",
        help='lines {"id", "gold", "prediction"[, "kind", "choices", "accept"]}, or -',
    )
    parser.add_argument("--kind", choices=KINDS, help="of all answers (a line's kind, else math)")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="time limit per answer")
    parser.set_defaults(run=_verify)


def add_stats(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `stats`."""
    parser.add_argument("file", metavar="TRANSCRIPTS.jsonl", help=_TRANSCRIPTS)
    parser.add_argument("--seed", type=int, default=0, help="draws among equals and resamples")
    parser.add_argument("--level", type=float, default=0.95, help="coverage of the intervals")
    parser.set_defaults(run=_stats)


def _score(arguments: argparse.Namespace) -> None:
    reward = build_reward(arguments.reward, arguments.set)
    transcripts = list(transcripts_in(arguments.command, arguments.file))
    scores = score_debates(reward, transcripts)
    for transcript, score in zip(transcripts, scores, strict=True):
        if arguments.transcripts:
            _print_row(to_json(scored_transcript(transcript, score)))
        else:
            _print_row(score_line(transcript, score))
    sys.stdout.flush()


def _verify(arguments: argparse.Namespace) -> None:
    if not 0 < arguments.limit_s <= _MAX_LIMIT_S:
        raise UsageError(
            f"--limit-s: found {arguments.limit_s:g}, expected more than 0 and at most "
            f"{_MAX_LIMIT_S:g} seconds"
        )
    predictions = read_predictions(arguments.file)
    # In chunks, so that verdicts of a long file are printed while the rest is checked.
    for start in range(0, len(predictions), _VERIFY_CHUNK):
        chunk = predictions[start : start + _VERIFY_CHUNK]
        answers = [(row.question(arguments.kind), row.prediction) for row in chunk]
        verdicts = check_many(answers, limit_s=arguments.limit_s)
        for row, verdict in zip(chunk, verdicts, strict=True):
            _print_row({"id": row.id} | _verdict_fields(verdict))
        sys.stdout.flush()


def _verdict_fields(verdict: Verdict) -> dict[str, object]:
    fields = asdict(replace(verdict, seconds=round(verdict.seconds, 6)))
    if not verdict.detail:
        del fields["detail"]
    return fields


def _stats(arguments: argparse.Namespace) -> None:
    if not 0 < arguments.level < 1:
        raise UsageError(f"--level: found {arguments.level:g}, expected between 0 and 1")
    transcripts = list(transcripts_in(arguments.command, arguments.file))
    for transcript in transcripts:
        # A run only counts what it cannot measure; statistics of a file refuse it.
        check_turns(transcript)
        accepted_answers(transcript.question)
        kind_of(transcript.question)
        get_contract(transcript.protocol.contract)
    estimates = debate_statistics(transcripts, arguments.seed, arguments.level)
    report = {
        "debates": len(transcripts),
        "questions": len({transcript.question.id for transcript in transcripts}),
        "seed": arguments.seed,
        "level": arguments.level,
        "metrics": {name: estimate.value for name, estimate in estimates.items()},
        "intervals": {name: [e.value, e.low, e.high] for name, e in estimates.items()},
    }
    print(json.dumps(report, indent=2))


def build_reward(name: str, settings: Sequence[str]) -> Reward:
    """Build the reward of this name with `field=value` settings.

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
        *outer_names, field_name = key.split(".")
        settings_at_path = fields
        for outer_name in outer_names:
            settings_at_path = settings_at_path.setdefault(outer_name, {})
            if not isinstance(settings_at_path, dict):
                raise UsageError(f"--set {key}: {outer_name} is a value and has no fields")
        settings_at_path[field_name] = _value(text)
    try:
        return REWARDS.make(name, fields)
    except ValidationError as error:
        raise UsageError(_explain(error, name)) from None


def score_line(transcript: Transcript, score: Score) -> dict[str, object]:
    """Build the line that `score` prints for one debate.

    Streams hold values of whole turns; the components of a mixed reward are summed by weight.
    """
    stream_names = list(dict.fromkeys(credit.stream for credit in score.credits))
    # Values and weights of whole turns; credits of spans are parts of a turn.
    weighted_values: dict[tuple[int, int, str], list[tuple[float | None, float]]] = {}
    for credit in score.credits:
        if credit.span is None:
            key = (credit.agent, credit.round, credit.stream)
            weighted_values.setdefault(key, []).append((credit.value, credit.weight))
    turns = []
    for turn in transcript.turns:
        streams = {}
        for name in stream_names:
            values = weighted_values.get((turn.agent, turn.round, name), [])
            streams[name] = weighted_sum(values)
        turns.append({"agent": turn.agent, "round": turn.round, "streams": streams})
    return {
        "id": transcript.id,
        "agents": list(score.agents),
        "turns": turns,
        "metrics": dict(score.metrics),
    }


def scored_transcript(transcript: Transcript, score: Score) -> Transcript:
    """Add a debate's scores to its `meta`.

    `reward` is the mean of the agents' returns, `reward/agent_N` each of them, and `right` whether
    the answer of most agents is the question's. Unknown numbers are left out.
    """
    numbers: dict[str, float | None] = {"reward": known_mean(score.agents)}
    for agent, value in enumerate(score.agents):
        numbers[f"reward/agent_{agent}"] = value
    verdict = check(transcript.question, majority(transcript, seed=0)).verdict
    numbers["right"] = {"right": 1.0, "wrong": 0.0}.get(verdict)
    known_numbers = {name: number for name, number in numbers.items() if number is not None}
    return replace(transcript, meta={**transcript.meta, **known_numbers})


def _explain(error: ValidationError, name: str) -> str:
    first_error = error.errors(include_url=False)[0]
    # Pydantic names the chosen variant of a union too; the user did not type that.
    reward_names = [name, *(part for part in first_error["loc"] if part in REWARDS)]
    path = [str(part) for part in first_error["loc"] if part not in REWARDS]
    where = f"--set {'.'.join(path)}"
    reward = str(reward_names[-1])
    if first_error["type"] == "missing":
        return f"{where}: {reward} needs this field"
    if first_error["type"] == "extra_forbidden":
        field_names = [field for field in REWARDS[reward].model_fields if field != "type"]
        return f"{where}: {reward} has no such field, expected {_expected(path[-1], field_names)}"
    message = first_error["msg"]
    return f"{where}: found {first_error['input']!r}; {message[0].lower()}{message[1:]}"


def _expected(name: str, names: Iterable[str]) -> str:
    valid_names = list(names)
    return f"one of {', '.join(valid_names)}{did_you_mean(name, valid_names)}"


def _value(text: str) -> object:
    # Values are JSON; a text that is none needs no quotes.
    try:
        return json.loads(text)
    except ValueError:
        return text


def _print_row(row: dict[str, object]) -> None:
    print(escaped_json(json.dumps(row)))
