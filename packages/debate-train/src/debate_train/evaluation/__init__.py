"""Evaluation modes: each plays debates or replies on held-out questions, and computes figures."""

from debate_train.evaluation.debates import (
    Debate,
    DebateMode,
    Opponents,
    SocietyOfMinds,
    SwappedJudging,
)
from debate_train.evaluation.modes import (
    ONE_DEBATE,
    CurvePoint,
    Curves,
    EvaluationMode,
    Plays,
    Ratios,
    Values,
    debate_curves,
    reply_curves,
)
from debate_train.evaluation.settings import MODES, DirectAnswers, ModeChoice

# `measuring` and the rest of `settings` stay out: they import modes of other packages, which import
# this module.
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
    "CurvePoint",
    "Ratios",
    "SocietyOfMinds",
    "SwappedJudging",
    "Values",
    "debate_curves",
    "reply_curves",
]
