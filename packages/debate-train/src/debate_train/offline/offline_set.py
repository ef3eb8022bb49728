"""What a set of examples owes its callers: which replies of debates it takes, and why not others.

A phase with such a set first plays debates with the policy as it is at the phase's start, or reads
debates that were held before, takes examples from them once, and then trains on these.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from pydantic import Field

from debate_protocol.config import Config
from debate_protocol.forms import DebateForm
from debate_protocol.types import Transcript
from debate_train.offline.example import Example

__all__ = ["ImportedRollouts", "OfflineSet", "OfflineSettings", "Taken"]

PLAYED = 256
"""Training questions whose debates are played where a recipe names no number."""

Teaches = Literal["pairs", "demonstrations"]


@dataclass(slots=True)
class Taken:
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


class OfflineSet(Protocol):
    """Which examples debates give: a pydantic model with a field `type`.

    `OfflineSettings` brings all but `type`, `teaches` and `take`.
    """

    @property
    def type(self) -> str:
        """The name by which recipes choose it."""
        ...

    @property
    def teaches(self) -> Teaches:
        """What its examples are: those of a preference loss, or those of a supervised one."""
        ...

    @property
    def questions(self) -> int | None:
        """Training questions whose debates are played, or questions of a file that are used."""
        ...

    @property
    def path(self) -> str | None:
        """Where debates are read from, None where they are played."""
        ...

    @property
    def imported(self) -> "ImportedRollouts":
        """How rollouts of other programs are read from there."""
        ...

    @property
    def held_out(self) -> float:
        """Share of the questions whose pairs are not learned from."""
        ...

    @property
    def batch_size(self) -> int:
        """Examples of a step."""
        ...

    def problem(self, form: DebateForm) -> str | None:
        """Return why debates of this form give no examples, None where they may."""
        ...

    def doubt(self, metrics: Mapping[str, float]) -> str | None:
        """Return what the measures of a whole set say against learning from it, if anything."""
        ...

    def take(self, transcripts: Sequence[Transcript]) -> Taken:
        """Return the examples of debates whose turns hold their replies."""
        ...


class ImportedRollouts(Config):
    """How rows of verifiers and of TRL are read; transcripts bring all this themselves."""

    contract: str = "boxed"
    """How replies mark their answers."""
    kind: Literal["math", "choice", "yes_no", "number", "text"] | None = None
    """How answers are compared; None is mathematics."""
    answer: str | None = None
    """The column with the right answer; None takes `answer`, then `solution`."""


class OfflineSettings(Config):
    """The base class of sets of examples."""

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
    def take(self, transcripts: Sequence[Transcript]) -> Taken:
        """Return the examples of debates whose turns hold their replies."""
