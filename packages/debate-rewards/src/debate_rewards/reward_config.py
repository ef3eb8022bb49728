"""What every reward offers, those of other packages included."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from debate_protocol.config import Config
from debate_protocol.types import Protocol, Transcript
from debate_rewards.credits import Score

Need = Literal["answers", "votes"]
"""What values are made of: the questions' own answers, or comparisons between agents."""


@dataclass(frozen=True, slots=True)
class Use:
    """What a reward is used on.

    Attributes:
        rules: Those of the debates.
        questions: Of a step.
        max_tokens: Most tokens of a reply.
        judge_weight: Weight of the stream `judge`.
        baseline: What values are compared within, as in `advantage.baseline`.
    """

    rules: Protocol
    questions: int = 2
    max_tokens: int = 1024
    judge_weight: float = 1.0
    baseline: str = "debate"


class RewardConfig(Config):
    """The base class of rewards: a field `type`, streams, and a call that scores debates."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    """All of these must be there, or nothing has a value."""
    can_be_tried: ClassVar[bool] = False
    """Whether debates that a script writes have values where a policy's would."""

    is_changing: ClassVar[bool] = False
    """Whether it may be another in each step, as `at` says."""

    type: str
    """The name by which recipes choose the reward."""

    @property
    @abstractmethod
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""

    @abstractmethod
    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""

    @property
    def adds_advantages(self) -> bool:
        """Whether its parts are compared apart, each under its own name."""
        return False

    def parts(self) -> "Mapping[str, RewardConfig]":
        """Return the rewards that this one is made of, by component; one alone is called ''."""
        return {"": self}

    def part_weights(self) -> Mapping[str, float]:
        """Return the weight of each part."""
        return {"": 1.0}

    def at(self, step: int) -> Self:
        """Return the reward of a step of the phase, counted from 0; most are always the same."""
        return self

    def changes(self) -> list[str]:
        """Return what changes from step to step, each with the key that it is about."""
        return []

    def needed(self) -> frozenset[Need]:
        """Return what must be there under these settings, or nothing has a value."""
        return self.needs

    @property
    def least_questions(self) -> int:
        """The fewest questions of a batch with which every stream has values."""
        return 1

    def silence(self, stream: str, use: Use) -> str | None:
        """Return why no turn has a value in a stream, where that is known of these settings."""
        return None

    def few_judges(self, use: Use) -> str | None:
        """Return why judges are too few for their stream to teach much, None if they are not."""
        return None

    def warnings(self, use: Use) -> list[str]:
        """Return what should be looked at, each with the key that it is about."""
        return []
