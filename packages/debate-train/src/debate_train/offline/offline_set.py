"""What a set of examples is: which replies it takes, how they split, and why others are left out.

A phase with such a set first plays debates with the policy as it is at the phase's start, or reads
debates that were held before, takes examples from them once, and then trains on these.
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
"""Key of a row: what decides which examples there are, hashed."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A reply as text and as the ids that were sampled."""

    text: str
    token_ids: tuple[int, ...]

    @classmethod
    def of(cls, reply: Reply) -> "Completion":
        """Return a sampled reply."""
        return cls(reply.text, reply.token_ids)


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt with a reply to imitate, or with one that is preferred over another.

    `prompt` and `prompt_ids` are what the policy is asked when nobody guides it, whatever the
    completions were sampled from. `meta` says where it comes from and what it is worth.
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
    """What it counts for in a supervised loss, above 0."""

    def to_json(self) -> dict[str, object]:
        """Return a row as preference trainers and supervised ones read it.

        Pairs have `prompt`, `chosen` and `rejected`, others `prompt` and `completion`, all as chat
        messages; what only this trainer needs stands under `sampled` and `meta`.
        """
        said = {"completion": self.chosen}
        if self.rejected is not None:
            said = {"chosen": self.chosen, "rejected": self.rejected}
        sampled = {
            "prompt": list(self.prompt_ids),
            **{name: list(one.token_ids) for name, one in said.items()},
            **{name: getattr(self, name) for name in _SAMPLED},
        }
        return {
            "prompt": [dict(message) for message in self.prompt],
            **{n: [{"role": "assistant", "content": one.text}] for n, one in said.items()},
            "meta": dict(self.meta),
            "sampled": sampled,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "Example":
        """Return what `to_json` wrote.

        Raises:
            KeyError: Something is missing.
            TypeError: Something is of another kind.
        """
        sampled = row["sampled"]

        def completion(name: str) -> Completion:
            (message,) = row[name]
            return Completion(message["content"], tuple(map(index, sampled[name])))

        return cls(
            tuple(row["prompt"]),
            tuple(map(index, sampled["prompt"])),
            completion("chosen" if "chosen" in row else "completion"),
            completion("rejected") if "rejected" in row else None,
            meta=row["meta"],
            **{name: sampled[name] for name in _SAMPLED},
        )


_SAMPLED = ("agent", "adapter", "weight_version", "weight")


def example_of(
    transcript: Transcript, turn: Turn, chosen: Reply, rejected: Reply | None = None
) -> Example | None:
    """Return a reply to imitate, or a pair, under the prompt of a turn that nobody guided.

    None where a reply has no tokens, or where both are the same.
    """
    asked = turn.reply
    replies = [chosen.token_ids] if rejected is None else [chosen.token_ids, rejected.token_ids]
    if asked is None or () in replies or len(set(replies)) < len(replies):
        return None
    role = role_of(transcript.protocol, turn.agent)
    return Example(
        prompt=turn.prompt or (),
        prompt_ids=asked.prompt_ids,
        chosen=Completion.of(chosen),
        rejected=None if rejected is None else Completion.of(rejected),
        agent=turn.agent,
        adapter=role.adapter,
        weight_version=asked.weight_version,
        meta={
            "question": transcript.question.id,
            "debate": transcript.id,
            "role": role.name,
            "round": turn.round,
        },
    )


def read_examples(path: Path) -> list[Example]:
    """Return the examples of a file, in order.

    Raises:
        ValueError: A line is none; the message says which.
    """
    found = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                found.append(Example.from_json(json.loads(line)))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ValueError(
                    f"{path}:{number}: no example ({type(error).__name__}: {error})"
                ) from error
    return found


_SHARES = {
    "chosen_right": "offline/chosen_right_share",
    "rejected_right": "offline/rejected_right_share",
    "chosen_ok": "offline/chosen_ok_share",
    "actor_right": "offline/actor_right_share",
}
"""What `meta` of a pair says, and the metric of the pairs of which it is true."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair as an example, and the turns that it is made of.

    `reviewed` is the actor's last turn before them, which a critic's pair is about.
    """

    transcript: Transcript
    chosen: Turn
    rejected: Turn
    example: Example
    reviewed: Turn | None = None

    def answers(self) -> tuple[str | None, str | None, str | None]:
        """Return the answers of the chosen and the rejected reply, and that under review.

        A critic that names no answer stands for the actor's, if the other reply names one; where
        neither does, as in prose, it is not known what they stand for.
        """
        reviewed = None if self.reviewed is None else _answer(self.transcript, self.reviewed)
        own = [_answer(self.transcript, turn) for turn in (self.chosen, self.rejected)]
        if any(own) and not gives_answers(self.transcript.protocol, self.chosen.agent):
            own = [answer or reviewed for answer in own]
        return own[0], own[1], reviewed


def composed(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Yield the pairs; `meta` says which of their answers are right, None where it is not known."""
    answers = [pair.answers() for pair in pairs]
    asked = zip(pairs, answers, strict=True)
    verdicts = iter(check_many([(p.transcript.question, a) for p, own in asked for a in own]))
    for pair, own in zip(pairs, answers, strict=True):
        question = pair.transcript.question
        judged = [(answer, next(verdicts).verdict) for answer in own]
        right = [
            None if answer is None or verdict == "unverifiable" else verdict == "right"
            for answer, verdict in judged
        ]
        is_critic = not gives_answers(pair.transcript.protocol, pair.chosen.agent)
        agrees = None
        if is_critic and own[0] is not None and own[2] is not None:
            agrees = same_answer(question, own[0], own[2])
        said = dict(zip(_SHARES, (right[0], right[1], agrees, right[2]), strict=True))
        yield replace(pair, example=replace(pair.example, meta={**pair.example.meta, **said}))


def composition(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return how pairs split, and by how much their values differ, of examples as they are kept."""
    metas = [row["meta"] for row in rows if "rejected" in row]
    found = {}
    for key, name in _SHARES.items():
        known = [meta[key] for meta in metas if meta.get(key) is not None]
        if known:
            found[name] = fmean(known)
    for name, wanted in (
        ("", (True, False, None)),
        ("_actor_right", (True,)),
        ("_actor_wrong", (False,)),
    ):
        gains = [m["gain"] for m in metas if "gain" in m and m.get("actor_right") in wanted]
        if gains:
            found[f"offline/margin{name}"] = fmean(gains)
    return found


def _answer(transcript: Transcript, turn: Turn) -> str | None:
    owes = gives_answers(transcript.protocol, turn.agent)
    failed = owes and turn_failed(transcript, turn)
    return None if failed else parse_turn(transcript, turn).answer


PLAYED = 256
"""Training questions whose debates are played where a recipe names no number."""

Teaches = Literal["pairs", "demonstrations"]


@dataclass(slots=True)
class ExampleSet:
    """The examples of some debates, and how many replies were kept and left out, by cause."""

    examples: list[Example] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    measures: dict[str, list[float]] = field(default_factory=dict)
    """Values by the name of what was measured, one for each state or debate."""

    def measure(self, name: str, value: float) -> None:
        """Note one value of a measure."""
        self.measures.setdefault(name, []).append(value)

    def keep(self, example: Example, why: str) -> None:
        """Take an example."""
        self.examples.append(example)
        self.counts[f"kept/{why}"] += 1

    def leave_out(self, why: str, count: int = 1) -> None:
        """Count what is not taken."""
        self.counts[f"left_out/{why}"] += count


class ImportedRollouts(Config):
    """How rows of verifiers and of TRL are read; transcripts bring all this themselves."""

    contract: str = "boxed"
    """How replies mark their answers."""
    kind: Literal["math", "choice", "yes_no", "number", "text"] | None = None
    """How answers are compared; None is mathematics."""
    answer: str | None = None
    """The column with the right answer; None takes `answer`, then `solution`."""


class OfflineSettings(Config):
    """Which examples debates give: the base class of all sets of examples."""

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
        """Return why debates of this form give no examples, None where they may."""
        return None

    def doubt(self, metrics: Mapping[str, float]) -> str | None:
        """Return what the measures of a whole set say against learning from it, if anything."""
        return None

    @abstractmethod
    def take(self, transcripts: Sequence[Transcript]) -> ExampleSet:
        """Return the examples of debates whose turns hold their replies."""


def counted(
    taken: ExampleSet, held_out: ExampleSet, transcripts: Sequence[Transcript]
) -> dict[str, Any]:
    """Return the counts of a chunk, and all values of its measures.

    Args:
        taken: What is learned from.
        held_out: What is not; its states are measured all the same.
        transcripts: The debates of both.
    """
    counts = Counter(taken.counts)
    counts["held_out"] = len(held_out.examples)
    counts["debates"] = len(transcripts)
    found = [turn.token_counts for x in transcripts for turn in x.sampled_turns()]
    counts["sampled_tokens"] = sum(n[1] for n in found if n is not None)
    measures: dict[str, list[float]] = {}
    for part in (taken, held_out):
        for name, values in part.measures.items():
            measures.setdefault(name, []).extend(values)
    return {"counts": dict(counts), "measures": measures}


def summed(chunks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the counts of all chunks, of each measure its mean and standard error, and how pairs
    split into right and wrong.
    """
    counts: Counter[str] = Counter()
    measures: dict[str, list[float]] = {}
    for chunk in chunks:
        counts.update(chunk["counts"])
        for name, values in chunk["measures"].items():
            measures.setdefault(name, []).extend(values)
    found = {f"offline/{name}": float(count) for name, count in sorted(counts.items())}
    for name, values in measures.items():
        found[f"offline/{name}"] = fmean(values)
        if len(values) > 1:
            found[f"offline/{name}_standard_error"] = stdev(values) / len(values) ** 0.5
    return found | composition(row for chunk in chunks for row in chunk["examples"])
