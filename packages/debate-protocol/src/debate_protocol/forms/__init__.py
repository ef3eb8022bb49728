"""Debate forms: generators that yield turn requests, are sent replies and return a transcript."""

from typing import Annotated

from debate_protocol.forms.actor_critic import ActorCritic
from debate_protocol.forms.checked import Checked
from debate_protocol.forms.conl import Conl
from debate_protocol.forms.judged import Judged
from debate_protocol.forms.rounds import DebateState, Direct, Sequential, Simultaneous, turn_seed
from debate_protocol.forms.self_debate import SelfDebate
from debate_protocol.forms.settings import (
    CheckProposal,
    DebateForm,
    DebateSettings,
    DebateStart,
    Proposal,
    ProposalProblem,
    SameAnswer,
    SpeakingSettings,
    same_words,
)
from debate_protocol.plugins import Variants
from debate_protocol.types import neighbours, shown_turns

FORMS: Variants[DebateForm] = Variants(
    "debate_protocol.forms",
    DebateForm,
    Simultaneous,
    Sequential,
    Direct,
    SelfDebate,
    ActorCritic,
    Conl,
    Judged,
    Checked,
)
"""All forms, those of other installed packages included."""

FormConfig = Annotated[DebateForm, FORMS]
"""Any form; recipes choose by `type`."""

__all__ = [
    "FORMS",
    "ActorCritic",
    "CheckProposal",
    "Checked",
    "Conl",
    "DebateForm",
    "DebateSettings",
    "DebateStart",
    "DebateState",
    "Direct",
    "FormConfig",
    "Judged",
    "Proposal",
    "ProposalProblem",
    "SameAnswer",
    "SelfDebate",
    "Sequential",
    "Simultaneous",
    "SpeakingSettings",
    "neighbours",
    "same_words",
    "shown_turns",
    "turn_seed",
]
