"""Measuring a policy on held-out questions: modes, what they play, and means with intervals."""

from debate_train.evaluation.measuring import Measure, Measures, evaluate
from debate_train.evaluation.mode import (
    ONE_DEBATE,
    EvaluationMode,
    ModeSettings,
    Plays,
    Values,
    direct_form,
)
from debate_train.evaluation.modes import MODES, Debate, DirectAnswers, ModeChoice
from debate_train.evaluation.settings import Evaluation, Setup

__all__ = [
    "MODES",
    "ONE_DEBATE",
    "Debate",
    "DirectAnswers",
    "Evaluation",
    "EvaluationMode",
    "Measure",
    "Measures",
    "ModeChoice",
    "ModeSettings",
    "Plays",
    "Setup",
    "Values",
    "direct_form",
    "evaluate",
]
