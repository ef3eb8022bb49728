"""Debate forms: generators that yield asks, are sent replies and return a transcript."""

from typing import Annotated

from pydantic import Field

from debate_protocol.forms.actor_critic import ActorCritic
from debate_protocol.forms.direct import Direct
from debate_protocol.forms.self_debate import SelfDebate
from debate_protocol.forms.sequential import Sequential
from debate_protocol.forms.simultaneous import Simultaneous
from debate_protocol.forms.turns import turn_seed
from debate_protocol.visibility import neighbours, shown_turns

DebateForm = Annotated[
    Simultaneous | Sequential | Direct | SelfDebate | ActorCritic, Field(discriminator="type")
]
"""Any form; recipes choose by `type`."""

__all__ = [
    "ActorCritic",
    "DebateForm",
    "Direct",
    "SelfDebate",
    "Sequential",
    "Simultaneous",
    "neighbours",
    "shown_turns",
    "turn_seed",
]
