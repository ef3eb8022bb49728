"""Sets of examples: a policy learns from debates of the phase's start, or from those of files."""

from typing import Annotated

from debate_protocol.plugins import Variants
from debate_train.offline.answer_sets import AnswerPairs, ChosenReplies, EveryReply
from debate_train.offline.guided_pairs import GuidedPairs
from debate_train.offline.offline_set import (
    Completion,
    Example,
    ExampleSet,
    OfflineSettings,
    read_examples,
)

OFFLINE: Variants[OfflineSettings] = Variants(
    "debate_train.offline", OfflineSettings, GuidedPairs, AnswerPairs, ChosenReplies, EveryReply
)
"""All sets of examples, those of other installed packages included."""

OfflineChoice = Annotated[OfflineSettings, OFFLINE]
"""Any set of examples; recipes choose by `type`."""

__all__ = [
    "OFFLINE",
    "AnswerPairs",
    "ChosenReplies",
    "Completion",
    "EveryReply",
    "Example",
    "GuidedPairs",
    "OfflineChoice",
    "OfflineSettings",
    "ExampleSet",
    "read_examples",
]
