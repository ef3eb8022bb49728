"""What a transcript must keep beyond its types: turns that exist and are seen once said."""

from debate_protocol.parsing.contract import get_contract
from debate_protocol.roles import check_roles
from debate_protocol.types import Protocol, Transcript, Turn, TurnKey
from debate_protocol.visibility import check_topology


def transcript_problems(transcript: Transcript) -> list[str]:
    """Return everything that contradicts itself, in words; empty when all is well."""
    rules = transcript.protocol
    problems = _rule_problems(rules)
    spoken: set[TurnKey] = set()
    for turn in transcript.turns:
        if turn.key in spoken:
            problems.append(f"{_name(turn.key)} is there twice")
        spoken.add(turn.key)
        if not 0 <= turn.agent < rules.num_agents:
            problems.append(f"{_name(turn.key)}: expected agents 0 to {rules.num_agents - 1}")
        if not 0 <= turn.round < rules.max_rounds:
            problems.append(f"{_name(turn.key)}: expected rounds 0 to {rules.max_rounds - 1}")
    for turn in transcript.turns:
        problems += _shown_problems(rules, turn, spoken)
        problems += _beside_problems(rules, turn)
    return problems


def _rule_problems(rules: Protocol) -> list[str]:
    problems = []
    if rules.num_agents < 1:
        problems.append(f"protocol.num_agents: found {rules.num_agents}, expected at least 1")
    if rules.max_rounds < 1:
        problems.append(f"protocol.max_rounds: found {rules.max_rounds}, expected at least 1")
    try:
        get_contract(rules.contract)
    except ValueError as problem:
        problems.append(f"protocol.{problem}")
    for check in (check_topology, check_roles):
        try:
            check(rules)
        except ValueError as problem:
            problems.append(f"protocol.{problem}")
    return problems


def _shown_problems(rules: Protocol, turn: Turn, spoken: set[TurnKey]) -> list[str]:
    problems = []
    if len(set(turn.shown)) < len(turn.shown):
        problems.append(f"{_name(turn.key)}: a turn stands twice in shown")
    for key in turn.shown:
        same_round = key.round == turn.round
        earlier = key.round < turn.round or (
            rules.schedule == "sequential" and same_round and key.agent < turn.agent
        )
        if key not in spoken:
            problems.append(f"{_name(turn.key)}: shown {list(key)} is no turn of this debate")
        elif key.agent == turn.agent:
            problems.append(f"{_name(turn.key)}: shown {list(key)} is its own; expected others'")
        elif not earlier:
            problems.append(f"{_name(turn.key)}: shown {list(key)} was spoken later")
    return problems


def _beside_problems(rules: Protocol, turn: Turn) -> list[str]:
    problems = []
    for branch in turn.branches:
        if branch.turn.key != turn.key:
            problems.append(f"{_name(turn.key)}: found a branch that is {_name(branch.turn.key)}")
        problems += _beside_problems(rules, branch.turn)
    for following in turn.continuations:
        is_next = following.round > turn.round or (
            rules.schedule == "sequential"
            and following.round == turn.round
            and following.agent > turn.agent
        )
        if not is_next:
            found = _name(following.key)
            problems.append(f"{_name(turn.key)}: continued by {found}; expected a later turn")
        if not 0 <= following.agent < rules.num_agents:
            problems.append(f"{_name(following.key)}: expected agents 0 to {rules.num_agents - 1}")
        problems += _beside_problems(rules, following)
    return problems


def _name(key: TurnKey) -> str:
    return f"turn of agent {key.agent} in round {key.round}"
