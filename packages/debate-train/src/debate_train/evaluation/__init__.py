"""Evaluation modes: what each plays on held-out questions, and which figures it makes of it."""

from debate_train.evaluation.curves import Curves, Point, debate_curves, reply_curves
from debate_train.evaluation.debates import Debate, DebateMode, SocietyOfMinds
from debate_train.evaluation.mode import (
    ONE_DEBATE,
    EvaluationMode,
    ModeSettings,
    Plays,
    Ratios,
    Values,
    direct_form,
)
from debate_train.evaluation.modes import MODES, DirectAnswers, MajorityOfReplies, ModeChoice
from debate_train.evaluation.opponents import Opponents
from debate_train.evaluation.swapped import SwappedJudging

# Not what reads settings (`settings`, `measuring`): it imports modes of others, which import this.
__all__ = [
    "MODES",
    "ONE_DEBATE",
    "Curves",
    "Debate",
    "DebateMode",
    "DirectAnswers",
    "EvaluationMode",
    "MajorityOfReplies",
    "ModeChoice",
    "ModeSettings",
    "Opponents",
    "Plays",
    "Point",
    "Ratios",
    "SocietyOfMinds",
    "SwappedJudging",
    "Values",
    "debate_curves",
    "direct_form",
    "reply_curves",
]
