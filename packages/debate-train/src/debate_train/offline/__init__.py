"""Sets of examples: what a policy learns from debates that were held before, not on the way."""

from typing import Annotated

from debate_protocol.plugins import Variants
from debate_train.offline.answer_sets import AnswerPairs, ChosenReplies, EveryReply
from debate_train.offline.guided_pairs import GuidedPairs
from debate_train.offline.offline_set import (
    Completion,
    Example,
    OfflineSet,
    OfflineSettings,
    Taken,
    read_examples,
)

OFFLINE: Variants[OfflineSet] = Variants(
    "debate_train.offline", OfflineSet, GuidedPairs, AnswerPairs, ChosenReplies, EveryReply
)
"""All sets of examples, those of other installed packages included."""

OfflineChoice = Annotated[OfflineSet, OFFLINE]
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
    "OfflineSet",
    "OfflineSettings",
    "Taken",
    "read_examples",
]
