"""Our evaluation modes: direct replies and their majority, and debates (`debates`)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from debate_protocol.forms import DebateForm
from debate_protocol.plugins import Variants
from debate_protocol.types import Transcript
from debate_train.evaluation.curves import Curves, most_replies, reply_curves
from debate_train.evaluation.debates import Debate, SocietyOfMinds
from debate_train.evaluation.mode import (
    EvaluationMode,
    ModeSettings,
    Plays,
    Ratios,
    Values,
    direct_form,
)
from debate_train.evaluation.opponents import Opponents
from debate_train.evaluation.swapped import SwappedJudging


class _Replies(ModeSettings):
    """Single replies, prompted as a debate begins: what the modes of such replies share."""

    samples: int = Field(4, ge=1)
    """Replies to each question, in each run."""

    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """Return the replies."""
        return (Plays(direct_form(form), range(self.samples), "alone"),)

    def _more(self) -> dict[str, str]:
        """Return the figures without a row."""
        named = ["format", "tokens/answer", "right/tokens", "wrong/tokens"]
        if self.samples > 1:
            named += [f"{name}@{self.samples}" for name in ("maj", "pass", "cons")]
        return dict.fromkeys(named, "")

    def details(self, form: DebateForm) -> Mapping[str, str]:
        """Return the rows of what K replies give, and of their cost."""
        names = {"maj": "majority of {} replies", "pass": "one of {} replies is right"}
        rows = {f"{n}@{self.samples}": row.format(self.samples) for n, row in names.items()}
        return (rows if self.samples > 1 else {}) | {"tokens/answer": "sampled tokens of a reply"}

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Return each question's share of right replies (mean@K), and what K of them give."""
        from debate_rewards.metrics.debate_metrics import question_values

        names = {"correct": "accuracy", "format": "format", "tokens/answer": "tokens/answer"}
        found = question_values(played[0])
        values = {ours: found[theirs] for theirs, ours in names.items() if theirs in found}
        return {**values, **self._of_many(played[0])}

    def _of_many(self, replies: Sequence[Transcript]) -> Values:
        """Return maj@K, pass@K and cons@K of K = `samples` replies, over all subsets of K."""
        if self.samples == 1:
            return {}
        curves = reply_curves(replies, self.samples)
        last = {name: points[-1].values for name, points in curves.items()}
        return {f"{name.removesuffix('@k')}@{self.samples}": one for name, one in last.items()}

    def ratios(self, played: Sequence[Sequence[Transcript]]) -> Ratios:
        """Return the mean lengths of right and of wrong replies."""
        from debate_rewards.metrics.debate_metrics import question_moments

        sides = ("right/tokens", "wrong/tokens")
        found: dict[str, dict[str, tuple[float, ...]]] = {}
        for question, moments in question_moments(played[0]).items():
            for name in sides:
                if f"{name}/round_0" in moments:
                    found.setdefault(name, {})[question] = moments[f"{name}/round_0"]
        return found

    def curves(self, played: Sequence[Sequence[Transcript]]) -> Curves:
        """Return `maj@k`, `pass@k` and `cons@k`, k from 1 to all replies of all runs."""
        return reply_curves(played[0], max(self.samples, most_replies(played[0])))

    def counted(self, form: DebateForm) -> str:
        """Return the number of replies."""
        return f"{self.samples} direct repl{'y' if self.samples == 1 else 'ies'}"


class DirectAnswers(_Replies):
    """The policy alone: single replies, prompted as a debate begins."""

    type: Literal["direct"] = "direct"

    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """Return the share of right replies with its row, and what several of them give."""
        return {"accuracy": "direct accuracy"} | self._more()


class MajorityOfReplies(_Replies):
    """The majority of K single replies, Maj@K: what a debate's tokens give without a debate.

    Its replies have the seeds of those of `direct`, and are sampled once for both.

    Source: Wang et al. (2022), Self-consistency improves chain of thought reasoning.
    """

    type: Literal["majority"] = "majority"
    samples: int = Field(5, ge=1)

    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """Return the majority's accuracy with its row, and the figures of its replies."""
        row = f"majority of {self.samples} replies"
        return {"accuracy": row, "mean": ""} | self._more()

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Return whether the majority is right, ties in expectation, and each reply (`mean`)."""
        found = dict(super().values(played))
        mean = found.pop("accuracy", {})
        majority = found.get(f"maj@{self.samples}", mean)
        return {"accuracy": majority, "mean": mean, **found}


MODES: Variants[EvaluationMode] = Variants(
    "debate_train.evaluation",
    EvaluationMode,
    Debate,
    DirectAnswers,
    MajorityOfReplies,
    Opponents,
    SocietyOfMinds,
    SwappedJudging,
)
"""All evaluation modes, those of other installed packages included."""

ModeChoice = Annotated[EvaluationMode, MODES]
"""Any evaluation mode; recipes choose by `type`."""
