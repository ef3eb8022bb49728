"""Our evaluation modes: direct replies, and debates."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from debate_protocol.forms import DebateForm
from debate_protocol.plugins import Variants
from debate_protocol.roles import agents_by_policy
from debate_protocol.types import Transcript
from debate_train.evaluation.changes import DebateChanges
from debate_train.evaluation.curves import Curves, debate_curves, reply_curves
from debate_train.evaluation.mode import EvaluationMode, ModeSettings, Plays, Values, direct_form
from debate_train.evaluation.opponents import Opponents


class DirectAnswers(ModeSettings):
    """The policy alone: single replies, prompted as a debate begins."""

    type: Literal["direct"] = "direct"
    samples: int = Field(4, ge=1)
    """Replies to each question, in each run."""

    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """Return the replies."""
        return (Plays(direct_form(form), range(self.samples), "alone"),)

    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """Return the share of right replies."""
        return {"accuracy": "direct accuracy"}

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Return each question's share of right replies."""
        return _renamed(played, {"correct": "accuracy"})

    def curves(self, played: Sequence[Sequence[Transcript]]) -> Curves:
        """Return `maj@k` and `pass@k` for 1 to all replies of a run, beside their tokens."""
        return reply_curves(played[0], self.samples)

    def counted(self, form: DebateForm) -> str:
        """Return the number of replies."""
        return f"{self.samples} direct repl{'y' if self.samples == 1 else 'ies'}"


_FIGURES: Mapping[str, tuple[str, str]] = {
    "decision/majority": ("majority/accuracy", "majority vote"),
    "decision/peer_vote": ("peer_vote/accuracy", "peer-vote decision"),
    "judge/accuracy": ("judge/accuracy", "judge accuracy"),
    "format_all": ("format", "valid format"),
    "correct": ("last_round/accuracy", ""),
    "judge/equal_share": ("judge/equal_share", ""),
    "comparisons_made": ("comparisons_made", ""),
    "pass@k": ("pass@k", ""),
    "diversity/round_0": ("diversity/round_0", ""),
}
"""What is taken from debates: a name of `debate_rewards.metrics` to ours, and its row."""


def _figures_of(policies: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the same for figures of the agents of one policy, as `agents_by_policy` names it."""
    own = {"correct": "accuracy", "format_all": "format", "judge/accuracy": "judge/accuracy"}
    rows = {"correct": "accuracy, ", "judge/accuracy": "judge accuracy, "}
    return {
        f"{of}/{theirs}": (f"{of}/{ours}", f"{rows[theirs]}{of}" if theirs in rows else "")
        for of in policies
        for theirs, ours in own.items()
    }


class Debate(DebateChanges, ModeSettings):
    """The policy in debates: by majority, by the votes of its peers, and as a judge."""

    type: Literal["debate"] = "debate"

    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """Return one debate; none where a form of one turn is no debate."""
        debated = self.form(form)
        return (Plays(debated),) if debated.turn_count() > 1 else ()

    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """Return the figures of debates, and where several policies speak those of each."""
        policies = agents_by_policy(self.form(form).protocol())
        return dict([*_FIGURES.values(), *_figures_of(policies).values()])

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Return the figures of each question."""
        policies = {name for one in played[0] for name in agents_by_policy(one.protocol)}
        figures = {**_FIGURES, **_figures_of(policies)}
        return _renamed(played, {theirs: ours for theirs, (ours, _) in figures.items()})

    def curves(self, played: Sequence[Sequence[Transcript]]) -> Curves:
        """Return the accuracy of each round beside all tokens until then."""
        return debate_curves(played[0])

    def counted(self, form: DebateForm) -> str:
        """Return the number of turns."""
        turns = sum(one.turns for one in self.plays(form))
        return f"{turns:,} turns of debate" if turns else ""


def _renamed(played: Sequence[Sequence[Transcript]], names: Mapping[str, str]) -> Values:
    from debate_rewards.metrics.debate_metrics import question_values

    found = question_values([debate for debates in played for debate in debates])
    return {ours: found[theirs] for theirs, ours in names.items() if theirs in found}


MODES: Variants[EvaluationMode] = Variants(
    "debate_train.evaluation", EvaluationMode, Debate, DirectAnswers, Opponents
)
"""All evaluation modes, those of other installed packages included."""

ModeChoice = Annotated[EvaluationMode, MODES]
"""Any evaluation mode; recipes choose by `type`."""
