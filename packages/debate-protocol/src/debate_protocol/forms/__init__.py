"""Debate forms: generators that yield asks, are sent replies and return a transcript."""

from typing import Annotated

from debate_protocol.forms.actor_critic.form import ActorCritic
from debate_protocol.forms.debate_settings import DebateSettings
from debate_protocol.forms.direct import Direct
from debate_protocol.forms.form import DebateForm
from debate_protocol.forms.gated_settings import FreeTextSettings, GatedSettings
from debate_protocol.forms.self_debate.form import SelfDebate
from debate_protocol.forms.sequential import Sequential
from debate_protocol.forms.settings import SpeakingSettings
from debate_protocol.forms.simultaneous import Simultaneous
from debate_protocol.forms.table import SameAnswer, Table, same_words
from debate_protocol.forms.turns import turn_seed
from debate_protocol.plugins import Variants
from debate_protocol.visibility import neighbours, shown_turns

FORMS: Variants[DebateForm] = Variants(
    "debate_protocol.forms",
    DebateForm,
    Simultaneous,
    Sequential,
    Direct,
    SelfDebate,
    ActorCritic,
)
"""All forms, those of other installed packages included."""

FormConfig = Annotated[DebateForm, FORMS]
"""Any form; recipes choose by `type`."""

__all__ = [
    "FORMS",
    "ActorCritic",
    "DebateForm",
    "DebateSettings",
    "Direct",
    "FormConfig",
    "FreeTextSettings",
    "GatedSettings",
    "SameAnswer",
    "SelfDebate",
    "Sequential",
    "Simultaneous",
    "SpeakingSettings",
    "Table",
    "neighbours",
    "same_words",
    "shown_turns",
    "turn_seed",
]
