"""Debate between language models: contract, parsing, prompts, forms and transcripts."""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from debate_protocol.contract import CONTRACTS, Contract, get_contract
    from debate_protocol.forms import (
        ActorCritic,
        DebateForm,
        Direct,
        SelfDebate,
        Sequential,
        Simultaneous,
    )
    from debate_protocol.parsing import (
        ParseError,
        parse,
        parse_turn,
        turn_failed,
    )
    from debate_protocol.prompts.styles import PromptTemplates
    from debate_protocol.prompts.view import DEFAULT_PERSONAS, Persona
    from debate_protocol.roles import (
        answering_agents,
        gives_answers,
        neighbours,
        role_of,
        roles_of,
        sees,
        shown_turns,
    )
    from debate_protocol.tags import Comparison, Parsed, SectionText
    from debate_protocol.transcripts.files import (
        TornLineWarning,
        from_json,
        read_transcripts,
        to_json,
        write_transcripts,
    )
    from debate_protocol.transcripts.records import TranscriptError, transcript_problems
    from debate_protocol.transcripts.showing import shown_debate
    from debate_protocol.transcripts.xml import from_xml, to_xml
    from debate_protocol.types import (
        AgentRole,
        Ask,
        Branch,
        DebateRun,
        Gate,
        Message,
        Protocol,
        Question,
        Reply,
        Transcript,
        Turn,
        TurnKey,
    )

_HOMES = {
    "contract": (
        "CONTRACTS",
        "Contract",
        "get_contract",
    ),
    "forms": (
        "ActorCritic",
        "DebateForm",
        "Direct",
        "SelfDebate",
        "Sequential",
        "Simultaneous",
    ),
    "parsing": (
        "ParseError",
        "parse",
        "parse_turn",
        "turn_failed",
    ),
    "prompts.styles": ("PromptTemplates",),
    "prompts.view": (
        "DEFAULT_PERSONAS",
        "Persona",
    ),
    "roles": (
        "answering_agents",
        "gives_answers",
        "role_of",
        "roles_of",
        "neighbours",
        "sees",
        "shown_turns",
    ),
    "tags": (
        "Comparison",
        "Parsed",
        "SectionText",
    ),
    "transcripts.files": (
        "TornLineWarning",
        "from_json",
        "read_transcripts",
        "to_json",
        "write_transcripts",
    ),
    "transcripts.records": (
        "TranscriptError",
        "transcript_problems",
    ),
    "transcripts.showing": ("shown_debate",),
    "transcripts.xml": (
        "from_xml",
        "to_xml",
    ),
    "types": (
        "AgentRole",
        "Ask",
        "Branch",
        "DebateRun",
        "Gate",
        "Message",
        "Protocol",
        "Question",
        "Reply",
        "Transcript",
        "Turn",
        "TurnKey",
    ),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    # Importing a name's module only when it is asked for keeps `import debate_protocol` quick:
    # forms bring pydantic, and XML brings lxml.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "ActorCritic",
    "AgentRole",
    "Ask",
    "Branch",
    "CONTRACTS",
    "Comparison",
    "Contract",
    "DEFAULT_PERSONAS",
    "DebateForm",
    "DebateRun",
    "Direct",
    "Gate",
    "Message",
    "ParseError",
    "Parsed",
    "Persona",
    "PromptTemplates",
    "Protocol",
    "Question",
    "Reply",
    "SectionText",
    "SelfDebate",
    "Sequential",
    "Simultaneous",
    "TornLineWarning",
    "Transcript",
    "TranscriptError",
    "Turn",
    "TurnKey",
    "answering_agents",
    "from_json",
    "from_xml",
    "get_contract",
    "gives_answers",
    "neighbours",
    "parse",
    "parse_turn",
    "read_transcripts",
    "role_of",
    "roles_of",
    "sees",
    "shown_debate",
    "shown_turns",
    "to_json",
    "to_xml",
    "transcript_problems",
    "turn_failed",
    "write_transcripts",
]
