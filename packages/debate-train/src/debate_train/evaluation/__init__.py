"""Evaluation modes: what each plays on held-out questions, and which figures it makes of it."""

from debate_train.evaluation.debates import (
    Debate,
    DebateMode,
    Opponents,
    SocietyOfMinds,
    SwappedJudging,
)
from debate_train.evaluation.modes import (
    ONE_DEBATE,
    Curves,
    EvaluationMode,
    Plays,
    Point,
    Ratios,
    Values,
    debate_curves,
    reply_curves,
)
from debate_train.evaluation.settings import MODES, DirectAnswers, ModeChoice

# Not what reads settings (`settings`, `measuring`): it imports modes of others, which import this.
__all__ = [
    "MODES",
    "ONE_DEBATE",
    "Curves",
    "Debate",
    "DebateMode",
    "DirectAnswers",
    "EvaluationMode",
    "ModeChoice",
    "Opponents",
    "Plays",
    "Point",
    "Ratios",
    "SocietyOfMinds",
    "SwappedJudging",
    "Values",
    "debate_curves",
    "reply_curves",
]
