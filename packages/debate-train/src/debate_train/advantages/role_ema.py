"""A running baseline for each role: what an agent of that role has earned lately."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from debate_protocol.roles import role_of
from debate_protocol.types import Transcript, TurnKey
from debate_rewards.credits import Score
from debate_train.advantages.advantage import (
    Advantage,
    AdvantageConfig,
    Baselines,
    Compared,
    TurnAdvantages,
)
from debate_train.advantages.members import members, sum_equal


class RoleEma(AdvantageConfig):
    """Takes off what the role earned lately: A = R − b, after b ← decay·b + (1 − decay)·R.

    Each role of a debate has a baseline of its own in each stream and component, 0 at the start of
    a phase; agents of one role share it. Values count in the order of debates. Where roles differ
    in what they can win, as in games that one side wins more often, the mean of a group would
    credit a role with its luck.

    Source: role-conditioned advantage estimation of Liu et al. 2025, SPIRAL (arXiv 2506.24119),
    section 3.2; there the decay is 0.95.
    """

    type: Literal["role_ema"] = "role_ema"
    decay: float = Field(0.95, ge=0, lt=1)
    """Share of the old baseline that stays at each value."""

    def baseline_of(self, stream: str) -> str:
        """Return that values are compared with those before."""
        return "role"

    def compare(
        self, transcripts: Sequence[Transcript], scores: Sequence[Score], before: Baselines
    ) -> Compared:
        """Return the advantages of each turn, and the baselines after them."""
        baselines = dict(before)
        result: list[dict[TurnKey, list[Advantage]]] = [defaultdict(list) for _ in transcripts]
        for index, (transcript, score) in enumerate(zip(transcripts, scores, strict=True)):
            for member in members(index, transcript, score):
                stream = self.streams.get(member.stream)
                if stream is None or stream.weight == 0 or member.value is None:
                    continue
                role = role_of(transcript.protocol, member.credits[0].agent)
                parts = (member.component, member.stream, role.name)
                name = "/".join(filter(None, parts))
                kept = self.decay * baselines.get(name, 0.0) + (1 - self.decay) * member.value
                baselines[name] = kept
                for turn in member.turns:
                    result[index][turn] += member.advantages(kept, 1.0)
        turns: list[TurnAdvantages] = [
            {turn: sum_equal(found) for turn, found in one.items()} for one in result
        ]
        return Compared(turns, baselines)
