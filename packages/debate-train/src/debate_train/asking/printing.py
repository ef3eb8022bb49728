"""What `debate-ask` prints."""

import json
from typing import Any, Literal

from debate_protocol.roles import role_of
from debate_protocol.transcripts.control_characters import escaped
from debate_protocol.types import Ask, Reply
from debate_rewards.reading import read_debate
from debate_rewards.votes.decisions import answer_text
from debate_train.asking.asking import Answer
from debate_train.recipe import Recipe


class Printer:
    """Prints turns as they come, the answer alone, or one JSON object."""

    def __init__(self, recipe: Recipe, shows: Literal["turns", "answer", "json"]) -> None:
        self._rules, self._shows = recipe.debate.protocol(), shows

    def turn(self, ask: Ask, reply: Reply) -> None:
        """Print a turn."""
        if self._shows != "turns":
            return
        role = role_of(self._rules, ask.agent)
        who = f"Agent {ask.agent}, round {ask.round + 1}"
        who += f" ({role.name})" if len(self._rules.roles) > 1 else ""
        sampled = reply.token_counts[1]
        tokens = f", {sampled:,} tokens" if sampled else ""
        cut = ", cut off" if reply.finish == "length" else ""
        print(f"--- {who}{tokens}{cut}\n{_shown(reply.text.strip())}\n", flush=True)

    def end(self, found: Answer) -> None:
        """Print what the debate came to."""
        if self._shows == "json":
            print(json.dumps(as_json(found), ensure_ascii=False))
        elif self._shows == "answer":
            print(_shown(found.answer or ""))
        else:
            print(_summary(found))


def as_json(found: Answer) -> dict[str, Any]:
    """Return what `--json` prints: the answer, votes, every rule's answer, tokens and turns."""
    debate = read_debate(found.transcript)
    turns = [
        {
            "agent": turn.agent,
            "round": turn.round,
            "answer": answer_text(debate, debate.turns[turn.key]),
            "failure": turn.failure,
            "text": turn.text,
        }
        for turn in found.transcript.turns
        if turn.key in debate.turns
    ]
    return {
        "question": found.transcript.question.text,
        "answer": found.answer,
        "decision": found.decision,
        "decisions": found.decisions,
        "votes": found.votes,
        "rounds": 1 + debate.last_round,
        "tokens": _tokens(found),
        "turns": turns,
    }


def _summary(found: Answer) -> str:
    rounds = 1 + read_debate(found.transcript).last_round
    votes = ", ".join(f"{_shown(answer)}: {n}" for answer, n in found.votes.items())
    others = ", ".join(
        f"{name}: {'none' if answer is None else _shown(answer)}"
        for name, answer in found.decisions.items()
    )
    tokens = _tokens(found)
    spent = f"; {tokens['sampled']:,} tokens sampled, {tokens['prompt']:,} read"
    spent = spent if tokens["sampled"] else ""
    answer = "none that can be read" if found.answer is None else _shown(found.answer)
    return (
        f"answer: {answer}\n"
        f"  by {found.decision}, after {rounds} round{'s' * (rounds > 1)}{spent}\n"
        f"  agents of the last round for each answer: {votes or 'none'}\n"
        f"  by rule: {others}"
    )


def _tokens(found: Answer) -> dict[str, int]:
    counts = [turn.token_counts or (0, 0) for turn in found.transcript.sampled_turns()]
    return {"prompt": sum(p for p, _ in counts), "sampled": sum(s for _, s in counts)}


def _shown(text: str) -> str:
    """Return text that changes nothing in a terminal."""
    return "\n".join(escaped(line) for line in text.splitlines())
