"""Rewards, references and pairs that make a run fail as the health monitor should notice."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from debate_protocol import Transcript
from debate_rewards.reward import read_debate
from debate_rewards.votes import Vote, all_votes, ballots
from debate_train.offline import Example, ExampleSet, GuidedPairs
from debate_train.trainers.references import open_reference
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
    """Pay votes for the turn shown first, which is that of the lower number."""
    return _paid_votes(debate, lambda vote: {">": 1.0, "=": 0.0, "<": -1.0}[vote.verdict])


def agent_1(debate: Transcript) -> Values:
    """Pay votes for agent 1, shown first to agent 0 and second to agent 2."""

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


def one_sided() -> AbstractContextManager[Any]:
    """Let a critic learn from no pair whose chosen reply agrees with the actor."""
    return _changed_pairs(lambda pair: None if pair.meta["chosen_ok"] else pair)


def backwards() -> AbstractContextManager[Any]:
    """Let the rejected reply of each pair be the chosen one."""

    def turned(pair: Example) -> Example:
        assert pair.rejected is not None
        right = pair.meta["rejected_right"], pair.meta["chosen_right"]
        meta = {**pair.meta, "chosen_right": right[0], "rejected_right": right[1]}
        return replace(pair, chosen=pair.rejected, rejected=pair.chosen, meta=meta)

    return _changed_pairs(turned)


def curt() -> AbstractContextManager[Any]:
    """Let the chosen reply of each pair end at once."""

    def cut(pair: Example) -> Example:
        return replace(pair, chosen=replace(pair.chosen, token_ids=pair.chosen.token_ids[-1:]))

    return _changed_pairs(cut)


def _changed_pairs(change: Callable[[Example], Example | None]) -> AbstractContextManager[Any]:
    own = GuidedPairs.take

    def take(self: GuidedPairs, transcripts: Sequence[Transcript]) -> ExampleSet:
        taken, found = own(self, transcripts), ExampleSet()
        found.measures = taken.measures
        for pair in map(change, taken.examples):
            if pair is None:
                found.leave_out("other")
            else:
                found.keep(pair, "changed")
        return found

    return patch.object(GuidedPairs, "take", take)
