"""Sets of examples: replies to learn from, their composition, and counts of replies left out.

A phase with such a set first plays debates with the policy of the phase's start, or reads debates
from files. It selects examples from them once, and then trains on these.
"""

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar, Literal

from pydantic import Field

from debate_protocol.forms import DebateForm
from debate_protocol.plugins import Config
from debate_protocol.types import (
    Message,
    Reply,
    Transcript,
    Turn,
    gives_answers,
    parse_turn,
    role_of,
    turn_failed,
)
from debate_rewards.answer_checking import check_many, same_answer

__all__ = [
    "Completion",
    "Example",
    "ImportedRollouts",
    "OfflineSettings",
    "ExampleSet",
    "read_examples",
]


MADE_FROM = "made_from"
"""Key of a row: a hash of all inputs that decide which examples there are."""
PLAYED = 256
"""Training questions whose debates are played, unless a recipe sets their number."""
_SAMPLED_FIELDS = ("agent", "adapter", "weight_version", "weight")
_SHARES = {
    "chosen_right": "offline/chosen_right_share",
    "rejected_right": "offline/rejected_right_share",
    "chosen_ok": "offline/chosen_ok_share",
    "actor_right": "offline/actor_right_share",
}
"""Metrics of the share of pairs for which an entry of `meta` is true, by that entry."""
# The values of `actor_right` that a metric of margins averages over, by the metric's suffix.
_MARGIN_GROUPS: Mapping[str, tuple[bool | None, ...]] = {
    "": (True, False, None),
    "_actor_right": (True,),
    "_actor_wrong": (False,),
}

Teaches = Literal["pairs", "demonstrations"]


@dataclass(frozen=True, slots=True)
class Completion:
    """A reply as text and as sampled ids."""

    text: str
    token_ids: tuple[int, ...]

    @classmethod
    def of(cls, reply: Reply) -> "Completion":
        """Copy text and ids of a sampled reply."""
        return cls(text=reply.text, token_ids=reply.token_ids)


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt with a reply to imitate, or with a reply preferred over another.

    `prompt` and `prompt_ids` are without guidance, even if the completions were sampled with it.
    `meta` holds the example's origin and values.
    """

    prompt: tuple[Message, ...]
    prompt_ids: tuple[int, ...]
    chosen: Completion
    rejected: Completion | None = None
    agent: int = 0
    adapter: str | None = None
    weight_version: int = 0
    meta: Mapping[str, object] = field(default_factory=dict)
    weight: float = 1.0
    """Weight in a supervised loss, above 0."""

    def to_json(self) -> dict[str, object]:
        """Build a row in the format of preference trainers and supervised trainers.

        Pairs have `prompt`, `chosen` and `rejected`, others `prompt` and `completion`, all as chat
        messages. Only this trainer reads `sampled` and `meta`.
        """
        completions = {"completion": self.chosen}
        if self.rejected is not None:
            completions = {"chosen": self.chosen, "rejected": self.rejected}
        messages = {}
        sampled: dict[str, object] = {"prompt": list(self.prompt_ids)}
        for name, completion in completions.items():
            messages[name] = [{"role": "assistant", "content": completion.text}]
            sampled[name] = list(completion.token_ids)
        for name in _SAMPLED_FIELDS:
            sampled[name] = getattr(self, name)
        return {
            "prompt": [dict(message) for message in self.prompt],
            **messages,
            "meta": dict(self.meta),
            "sampled": sampled,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "Example":
        """Parse a row of `to_json`.

        Raises:
            KeyError: An entry is missing.
            TypeError: An entry is of another type.
        """
        sampled = row["sampled"]

        def parse_completion(name: str) -> Completion:
            (message,) = row[name]
            # `index` refuses floats and strings, which `int` would round or parse.
            return Completion(
                text=message["content"],
                token_ids=tuple(index(token) for token in sampled[name]),
            )

        return cls(
            prompt=tuple(row["prompt"]),
            prompt_ids=tuple(index(token) for token in sampled["prompt"]),
            chosen=parse_completion("chosen" if "chosen" in row else "completion"),
            rejected=parse_completion("rejected") if "rejected" in row else None,
            meta=row["meta"],
            **{name: sampled[name] for name in _SAMPLED_FIELDS},
        )


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair as an example, with both turns.

    `reviewed` is the actor's turn before them, the subject of a critic's pair.
    """

    transcript: Transcript
    chosen: Turn
    rejected: Turn
    example: Example
    reviewed: Turn | None = None

    def answers(self) -> tuple[str | None, str | None, str | None]:
        """Read the answers of the chosen and the rejected reply, and the answer under review."""
        reviewed_answer = None
        if self.reviewed is not None:
            reviewed_answer = _readable_answer(self.transcript, self.reviewed)
        chosen_answer = _readable_answer(self.transcript, self.chosen)
        rejected_answer = _readable_answer(self.transcript, self.rejected)
        # A critic that names no answer supports the actor's, if the other reply names one. Where
        # neither does, as in prose, it is unknown which answer they support.
        is_critic = not gives_answers(self.transcript.protocol, self.chosen.agent)
        if is_critic and (chosen_answer or rejected_answer):
            chosen_answer = chosen_answer or reviewed_answer
            rejected_answer = rejected_answer or reviewed_answer
        return chosen_answer, rejected_answer, reviewed_answer


@dataclass(slots=True)
class ExampleSet:
    """The examples of some debates, and counts of replies kept and left out, by cause."""

    examples: list[Example] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    measures: dict[str, list[float]] = field(default_factory=dict)
    """Values of each measure by its name, one for each state or debate."""

    def measure(self, name: str, value: float) -> None:
        """Add a value of a measure."""
        self.measures.setdefault(name, []).append(value)

    def keep(self, example: Example, why: str) -> None:
        """Add an example, and count it by kind."""
        self.examples.append(example)
        self.counts[f"kept/{why}"] += 1

    def leave_out(self, why: str, count: int = 1) -> None:
        """Count left-out replies, by cause."""
        self.counts[f"left_out/{why}"] += count


def example_of(
    transcript: Transcript, turn: Turn, chosen: Reply, rejected: Reply | None = None
) -> Example | None:
    """Build an example under the prompt of a turn without guidance.

    `None` for a reply without tokens, or for two equal replies.
    """
    if turn.reply is None or not chosen.token_ids:
        return None
    if rejected is not None and rejected.token_ids in ((), chosen.token_ids):
        return None
    role = role_of(transcript.protocol, turn.agent)
    return Example(
        prompt=turn.prompt or (),
        prompt_ids=turn.reply.prompt_ids,
        chosen=Completion.of(chosen),
        rejected=None if rejected is None else Completion.of(rejected),
        agent=turn.agent,
        adapter=role.adapter,
        weight_version=turn.reply.weight_version,
        meta={
            "question": transcript.question.id,
            "debate": transcript.id,
            "role": role.name,
            "round": turn.round,
        },
    )


def read_examples(path: Path) -> list[Example]:
    """Read the examples of a file, in order.

    Raises:
        ValueError: A line is no example; the message names the line.
    """
    examples = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                examples.append(Example.from_json(json.loads(line)))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ValueError(
                    f"{path}:{number}: no example ({type(error).__name__}: {error})"
                ) from error
    return examples


def composed(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Add the verdicts on each pair's answers to its `meta`, `None` where unknown."""
    answers_of_pairs = [pair.answers() for pair in pairs]
    # All answers in one call: the processes that check them work side by side.
    to_check = []
    for pair, answers in zip(pairs, answers_of_pairs, strict=True):
        to_check += [(pair.transcript.question, answer) for answer in answers]
    verdicts = iter(check_many(to_check))
    for pair, answers in zip(pairs, answers_of_pairs, strict=True):
        is_right: list[bool | None] = []
        for answer in answers:
            verdict = next(verdicts).verdict
            is_unknown = answer is None or verdict == "unverifiable"
            is_right.append(None if is_unknown else verdict == "right")
        chosen_answer, _, reviewed_answer = answers
        agrees = None
        is_critic = not gives_answers(pair.transcript.protocol, pair.chosen.agent)
        if is_critic and chosen_answer is not None and reviewed_answer is not None:
            agrees = same_answer(pair.transcript.question, chosen_answer, reviewed_answer)
        meta = {
            **pair.example.meta,
            "chosen_right": is_right[0],
            "rejected_right": is_right[1],
            "chosen_ok": agrees,
            "actor_right": is_right[2],
        }
        yield replace(pair, example=replace(pair.example, meta=meta))


def composition(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Compute shares of right answers and mean margins of values, from rows of `to_json`."""
    metas = [row["meta"] for row in rows if "rejected" in row]
    metrics = {}
    for key, name in _SHARES.items():
        outcomes = [meta[key] for meta in metas if meta.get(key) is not None]
        if outcomes:
            metrics[name] = fmean(outcomes)
    for suffix, actor_right in _MARGIN_GROUPS.items():
        gains = []
        for meta in metas:
            if "gain" in meta and meta.get("actor_right") in actor_right:
                gains.append(meta["gain"])
        if gains:
            metrics[f"offline/margin{suffix}"] = fmean(gains)
    return metrics


def _readable_answer(transcript: Transcript, turn: Turn) -> str | None:
    must_answer = gives_answers(transcript.protocol, turn.agent)
    if must_answer and turn_failed(transcript, turn):
        return None
    return parse_turn(transcript, turn).answer


class ImportedRollouts(Config):
    """Reading of rows of verifiers and of TRL; transcripts contain all of this themselves."""

    contract: str = "boxed"
    """How replies mark their answers."""
    kind: Literal["math", "choice", "yes_no", "number", "text"] | None = None
    """How answers are compared; None is mathematics."""
    answer: str | None = None
    """The column with the right answer; None takes `answer`, then `solution`."""


class OfflineSettings(Config):
    """A selection of examples from debates: the base class of all sets of examples."""

    teaches: ClassVar[Teaches]

    type: str
    questions: int | None = Field(None, ge=1)
    """Training questions whose debates are played, those of the run's first steps; None is 256. Of
    a file the first questions that are used; None is all."""
    path: str | None = None
    """Transcripts, or rollouts of verifiers or TRL, that are read in the place of playing debates:
    a file, a run directory or a folder of debate-rollout."""
    imported: ImportedRollouts = ImportedRollouts()
    """How rollouts of other programs become debates."""
    held_out: float = Field(0.0, ge=0, lt=1)
    """Share of these questions whose pairs are never learned from: on them the run measures at the
    phase's end whether it prefers as the pairs do."""
    batch_size: int = Field(32, ge=1)
    """Examples of a step."""

    def problem(self, form: DebateForm) -> str | None:
        """Explain why debates of this form give no examples; `None` if they can."""
        return None

    def doubt(self, metrics: Mapping[str, float]) -> str | None:
        """Explain why a whole set's measures speak against learning from it, else `None`."""
        return None

    @abstractmethod
    def take(self, transcripts: Sequence[Transcript]) -> ExampleSet:
        """Select the examples of debates; the turns must have replies."""


def counted(
    learned: ExampleSet, held_out: ExampleSet, transcripts: Sequence[Transcript]
) -> dict[str, Any]:
    """Count a chunk of debates, and collect all values of measures.

    Args:
        learned: examples to learn from.
        held_out: examples not to learn from; their states are measured as well.
        transcripts: the debates of both.
    """
    counts = Counter(learned.counts)
    counts["held_out"] = len(held_out.examples)
    counts["debates"] = len(transcripts)
    num_sampled = 0
    for transcript in transcripts:
        for turn in transcript.sampled_turns():
            if turn.token_counts is not None:
                num_sampled += turn.token_counts[1]
    counts["sampled_tokens"] = num_sampled
    measures: dict[str, list[float]] = {}
    for example_set in (learned, held_out):
        for name, values in example_set.measures.items():
            measures.setdefault(name, []).extend(values)
    return {"counts": dict(counts), "measures": measures}


def summed(chunks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Sum the counts of all chunks, and compute means of their measures and pairs.

    Each measure has a mean and, for two values or more, a standard error.
    """
    counts: Counter[str] = Counter()
    measures: dict[str, list[float]] = {}
    rows: list[Mapping[str, Any]] = []
    for chunk in chunks:
        counts.update(chunk["counts"])
        rows += chunk["examples"]
        for name, values in chunk["measures"].items():
            measures.setdefault(name, []).extend(values)
    metrics = {f"offline/{name}": float(count) for name, count in sorted(counts.items())}
    for name, values in measures.items():
        metrics[f"offline/{name}"] = fmean(values)
        if len(values) > 1:
            metrics[f"offline/{name}_standard_error"] = stdev(values) / len(values) ** 0.5
    return metrics | composition(rows)
