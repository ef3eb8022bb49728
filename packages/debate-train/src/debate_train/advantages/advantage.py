"""What every way from credits to advantages offers, and where streams' values go."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from pydantic import Field

from debate_protocol.config import Config
from debate_protocol.roles import is_trained_on
from debate_protocol.types import Transcript, TurnKey
from debate_rewards.credits import Score, ScoreError

Baseline = Literal["debate", "question_round", "prompt", "batch", "none"]
"""Whose mean is taken off a value: that of the debate, of the turns of one question and round, of
the turns that answer one prompt, of the whole batch, or nobody's."""
RENAMED = {"center": "baseline, where group is called debate and round question_round"}

RETURN = "return"
"""The stream that is per agent: an agent's value holds for all its turns."""
JUDGING = ("comparison", "consensus", "consensus_reason")
SECTIONS: Mapping[str, tuple[str, ...]] = {"judge": JUDGING, "critic": ("evaluation",)}
"""Sections that these streams' values go to unless the recipe says otherwise.

`generator` takes all but those of `judge`, sections of a user's own contract included; any other
stream takes all.
"""


class Stream(Config):
    """Where one stream's values go and how much they weigh."""

    renamed: ClassVar[Mapping[str, str]] = RENAMED

    weight: float = 1.0
    """λ of the stream; 0 leaves it out."""
    sections: tuple[str, ...] | dict[str, float] | None = None
    """Sections, or each with a weight of its own; None takes the default of the stream's name."""
    baseline: Baseline | None = None
    """Whose mean is taken off; None takes the advantage's own."""

    def section_weight(self, name: str, section: str) -> float | None:
        """Return what a section's tokens count in a stream of this name, None if not covered."""
        sections = SECTIONS.get(name) if self.sections is None else self.sections
        if sections is None:
            return None if name == "generator" and section in JUDGING else 1.0
        if isinstance(sections, dict):
            return sections.get(section)
        return 1.0 if section in sections else None


@dataclass(frozen=True, slots=True)
class Advantage:
    """One advantage of one turn, already weighted by its reward component.

    `span` is the character range of the turn's text it holds for, or None for the rest of the
    stream's sections. A span replaces the rest of its own component only; components add up.
    """

    stream: str
    value: float
    span: tuple[int, int] | None = None
    component: str = ""


TurnAdvantages = dict[TurnKey, list[Advantage]]

Baselines = Mapping[str, float]
"""Running baselines by name: what a stateful advantage has learned so far."""
METRIC = "advantage/baseline/"
"""Begins the names of their metrics."""
ZERO = "advantage/zero/"
"""Begins the names of shares of turns that teach nothing."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The advantages of each turn, by transcript in order, and the baselines after them.

    Turns without signal in any stream of non-zero weight are absent.
    """

    turns: Sequence[TurnAdvantages]
    baselines: Baselines = field(default_factory=dict)
    left_out: Sequence[frozenset[TurnKey]] = ()
    """Turns that are not trained on at all, by transcript; empty where there are none."""

    def __post_init__(self) -> None:
        """Refuse baselines that the next step could not go on with."""
        for name, value in self.baselines.items():
            if not math.isfinite(value):
                raise ScoreError(
                    f"advantage: found {value} as baseline {name!r}; expected a number"
                )

    def taught(self, transcripts: Sequence[Transcript]) -> list[Transcript]:
        """Return the transcripts with the turns that are trained on.

        What is left out counts in no denominator, no minibatch and no penalty. As a part of what
        later turns were shown it stays.
        """
        if not any(self.left_out):
            return list(transcripts)
        return [
            replace(one, turns=tuple(turn for turn in one.turns if turn.key not in gone))
            for one, gone in zip(transcripts, self.left_out, strict=True)
        ]

    def metrics(self, transcripts: Sequence[Transcript]) -> dict[str, float]:
        """Return the baselines as metrics of the step, and which turns teach nothing, and why.

        - `advantage/zero/share`: turns that may be trained on and whose advantages are all 0 or
          absent. The others are its parts, and add up to it.
        - `advantage/zero/no_value`: no stream of the reward that counts has a value for the turn.
        - `advantage/zero/no_contrast`: it has one, but no turn of its question has an advantage:
          all are worth the same, as where all answers are right, or all wrong.
        - `advantage/zero/at_baseline`: other turns of its question have one, and its own value is
          just what it is compared with.
        """
        found = {f"{METRIC}{name}": value for name, value in self.baselines.items()}
        values = [
            (one.question.id, turns.get(turn.key))
            for one, turns in zip(transcripts, self.turns, strict=True)
            for turn in one.turns
            if is_trained_on(one.protocol, turn.agent)
        ]
        teaches = {question for question, own in values if _moves(own)}
        causes = {"no_value": 0, "no_contrast": 0, "at_baseline": 0}
        for question, own in values:
            if not own:
                causes["no_value"] += 1
            elif not _moves(own):
                causes["at_baseline" if question in teaches else "no_contrast"] += 1
        if values:
            found[f"{ZERO}share"] = sum(causes.values()) / len(values)
            found |= {f"{ZERO}{cause}": count / len(values) for cause, count in causes.items()}
        return found


def _moves(advantages: Sequence[Advantage] | None) -> bool:
    return any(one.value for one in advantages or ())


class AdvantageConfig(Config):
    """The base class of advantages: a field `type` and `compare`.

    `compare` is a function of its arguments alone: what it learns is handed back, kept with the
    step and by checkpoints, and handed in at the next one.
    """

    type: str
    """The name by which recipes choose it."""
    streams: dict[str, Stream] = Field(
        default_factory=lambda: {
            name: Stream() for name in ("generator", "judge", "return", "critic")
        }
    )
    """Names of the reward's streams to their weights and sections; others are left out."""

    @abstractmethod
    def compare(
        self, transcripts: Sequence[Transcript], scores: Sequence[Score], before: Baselines
    ) -> Compared:
        """Return the advantages of each turn, and the baselines for the next step.

        Args:
            transcripts: The debates of a step.
            scores: What the reward says of each, in order.
            before: The baselines that the phase's last step left, none at its first.
        """

    def baseline_of(self, stream: str) -> str:
        """Return what the values of a stream are compared with, as `Baseline` names it."""
        return "none"

    def __call__(
        self, transcripts: Sequence[Transcript], scores: Sequence[Score]
    ) -> list[TurnAdvantages]:
        """Return the advantages of each turn at a first step, a mapping for each transcript."""
        return list(self.compare(transcripts, scores, {}).turns)
