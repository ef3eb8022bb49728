"""Debate between language models: contract, parsing, prompts, forms and transcripts."""

import ast
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

__version__ = "0.1.0"


def lazy_names(
    package: str,
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package that imports names when used.

    The names are those that the package imports under `if TYPE_CHECKING:`, so that each is listed
    once: `from package.module import Name as Name`. Each takes its module along only when somebody
    asks for it, which keeps `import package` quick.
    """
    tree = ast.parse(inspect.getsource(sys.modules[package]))
    listed = [node for part in tree.body if isinstance(part, ast.If) for node in part.body]
    modules = {
        alias.name: node.module
        for node in listed
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }

    def getattr_(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    def dir_() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return getattr_, dir_, sorted(modules)


if TYPE_CHECKING:
    from debate_protocol.forms import ActorCritic as ActorCritic
    from debate_protocol.forms import DebateForm as DebateForm
    from debate_protocol.forms import Direct as Direct
    from debate_protocol.forms import SelfDebate as SelfDebate
    from debate_protocol.forms import Sequential as Sequential
    from debate_protocol.forms import Simultaneous as Simultaneous
    from debate_protocol.parsing import CONTRACTS as CONTRACTS
    from debate_protocol.parsing import Comparison as Comparison
    from debate_protocol.parsing import Contract as Contract
    from debate_protocol.parsing import Parsed as Parsed
    from debate_protocol.parsing import SectionText as SectionText
    from debate_protocol.parsing import get_contract as get_contract
    from debate_protocol.parsing import parse as parse
    from debate_protocol.prompts import DEFAULT_PERSONAS as DEFAULT_PERSONAS
    from debate_protocol.prompts import Persona as Persona
    from debate_protocol.prompts import PromptTemplates as PromptTemplates
    from debate_protocol.transcripts.files import TornLineWarning as TornLineWarning
    from debate_protocol.transcripts.files import TranscriptError as TranscriptError
    from debate_protocol.transcripts.files import from_json as from_json
    from debate_protocol.transcripts.files import read_transcripts as read_transcripts
    from debate_protocol.transcripts.files import to_json as to_json
    from debate_protocol.transcripts.files import transcript_problems as transcript_problems
    from debate_protocol.transcripts.files import write_transcripts as write_transcripts
    from debate_protocol.transcripts.showing import shown_debate as shown_debate
    from debate_protocol.transcripts.xml import from_xml as from_xml
    from debate_protocol.transcripts.xml import to_xml as to_xml
    from debate_protocol.types import AgentRole as AgentRole
    from debate_protocol.types import Branch as Branch
    from debate_protocol.types import DebateRun as DebateRun
    from debate_protocol.types import Gate as Gate
    from debate_protocol.types import Message as Message
    from debate_protocol.types import Protocol as Protocol
    from debate_protocol.types import Question as Question
    from debate_protocol.types import Reply as Reply
    from debate_protocol.types import Schedule as Schedule
    from debate_protocol.types import Transcript as Transcript
    from debate_protocol.types import Turn as Turn
    from debate_protocol.types import TurnKey as TurnKey
    from debate_protocol.types import TurnRequest as TurnRequest
    from debate_protocol.types import answering_agents as answering_agents
    from debate_protocol.types import gives_answers as gives_answers
    from debate_protocol.types import neighbours as neighbours
    from debate_protocol.types import parse_turn as parse_turn
    from debate_protocol.types import role_of as role_of
    from debate_protocol.types import roles_of as roles_of
    from debate_protocol.types import sees as sees
    from debate_protocol.types import shown_turns as shown_turns
    from debate_protocol.types import turn_failed as turn_failed

__getattr__, __dir__, __all__ = lazy_names(__name__)
