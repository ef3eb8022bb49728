"""Evaluation modes: what each plays on held-out questions, and which figures it makes of it."""

from debate_train.evaluation.curves import Curves, Point, debate_curves, reply_curves
from debate_train.evaluation.mode import (
    ONE_DEBATE,
    EvaluationMode,
    ModeSettings,
    Plays,
    Values,
    direct_form,
)
from debate_train.evaluation.modes import MODES, Debate, DirectAnswers, ModeChoice
from debate_train.evaluation.opponents import Opponents

# Not what reads settings (`settings`, `measuring`): it imports modes of others, which import this.
__all__ = [
    "MODES",
    "ONE_DEBATE",
    "Curves",
    "Debate",
    "DirectAnswers",
    "EvaluationMode",
    "ModeChoice",
    "ModeSettings",
    "Opponents",
    "Plays",
    "Point",
    "Values",
    "debate_curves",
    "direct_form",
    "reply_curves",
]
