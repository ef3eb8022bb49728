"""Rewards and a reference that make a run fail in a way that the health watch should notice."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from debate_protocol import Transcript
from debate_rewards.reading import read_debate
from debate_rewards.votes.ballots import Vote, all_votes, ballots
from debate_train.losses.references import open_reference
from debate_train.trainers.torch_session import TorchTrainerSession

Values = list[float | None]
Reward = Callable[[Transcript], Values]


def _paid_votes(debate: Transcript, worth: Callable[[Vote], float]) -> Values:
    """Return for each turn the mean worth of its votes, None for one without."""
    cast: dict[Any, list[float]] = {}
    for vote in all_votes(ballots(read_debate(debate))):
        cast.setdefault(vote.judge, []).append(worth(vote))
    return [sum(own) / len(own) if (own := cast.get(t.key)) else None for t in debate.turns]


def ties(debate: Transcript) -> Values:
    """Pay votes that prefer nobody, as a consensus does that most pairs agree on."""
    return _paid_votes(debate, lambda vote: float(vote.verdict == "="))


def first_shown(debate: Transcript) -> Values:
    """Pay votes for the turn that stands first, which is that of the lower number."""
    return _paid_votes(debate, lambda vote: {">": 1.0, "=": 0.0, "<": -1.0}[vote.verdict])


def agent_1(debate: Transcript) -> Values:
    """Pay votes for agent 1, who stands first for agent 0 and second for agent 2."""

    def worth(vote: Vote) -> float:
        sides = {">": vote.left.agent, "<": vote.right.agent}
        if 1 not in (vote.left.agent, vote.right.agent):
            return 0.0
        return {None: 0.0, 1: 1.0}.get(sides.get(vote.verdict), -1.0)

    return _paid_votes(debate, worth)


def tokens(debate: Transcript) -> Values:
    """Pay each sampled token."""
    return [float(len(turn.reply.token_ids)) if turn.reply else None for turn in debate.turns]


def plus_signs(debate: Transcript) -> Values:
    """Pay one habit of answering, whatever was asked: the share of `+` in the answer."""
    answers = [turn.parsed.answer or "" for turn in read_debate(debate).turns.values()]
    return [answer.count("+") / max(1, len(answer.split())) for answer in answers]


def moving_reference() -> AbstractContextManager[Any]:
    """Let the KL reference be the policy before each step, as one that is not kept would be."""
    own = TorchTrainerSession.step

    def step(session: Any, batch: Any) -> dict[str, float]:
        session._reference = open_reference("phase_start", session._model)
        return own(session, batch)

    return patch.object(TorchTrainerSession, "step", step)


def exchanged_reference() -> AbstractContextManager[Any]:
    """Let the KL reference be other weights than those of the phase's start."""
    own = TorchTrainerSession._write_reference

    def write(session: Any, read: Any) -> None:
        held = dict(session._model.named_parameters())
        own(session, read or (lambda name: held[name].detach() * 1.1))

    return patch.object(TorchTrainerSession, "_write_reference", write)
