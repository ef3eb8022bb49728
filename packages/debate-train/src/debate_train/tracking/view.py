"""What is shown of a step beside its metrics: a table of turns, and histograms."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from debate_protocol.roles import role_of
from debate_rewards.credits import Score
from debate_rewards.reading import ReadDebate, ReadTurn, read_debate
from debate_rewards.rewards.verifiable import turn_verdicts
from debate_train.tracking.tracker import Cell

if TYPE_CHECKING:
    from debate_train.batches.row_types import Batch, Floats
    from debate_train.running.step import Step

_MOST_TEXT = 8_000
"""Characters of a turn that are shown."""


def turn_table(phase: str, step: "Step", most: int) -> list[list[Cell]]:
    """Return the first turns of a step, a row each, as `COLUMNS` says.

    `right` is right, wrong or unverifiable; `votes` are agents, as in `1>2, 2=3`; `credit` is what
    the reward gave the whole turn in each stream; `advantage` is the mean over its tokens, None
    where it is not trained on.
    """
    chosen, count = 0, 0
    while chosen < len(step.transcripts) and count < most:
        count += len(step.transcripts[chosen].turns)
        chosen += 1
    debates = [read_debate(transcript) for transcript in step.transcripts[:chosen]]
    means = _mean_advantages(step.batch)
    rows: list[list[Cell]] = []
    scored = zip(debates, turn_verdicts(debates), step.scores, strict=False)
    for place, (debate, verdicts, score) in enumerate(scored):
        for turn in debate.judges.values():
            verdict = verdicts.get(turn.key)
            about: list[Cell] = [phase, step.number + 1, *_about(debate, turn)]
            about.append(None if verdict is None else verdict.verdict)
            rows.append([*about, *_earned(turn, score), _advantage(place, turn, means)])
    return rows[:most]


def _about(debate: ReadDebate, turn: ReadTurn) -> list[Cell]:
    transcript = debate.transcript
    role = role_of(transcript.protocol, turn.key.agent).name
    asked, said = _plain(transcript.question.text), _plain(turn.turn.text)
    return [_plain(transcript.id), asked, turn.key.agent, role, turn.key.round, said]


def _earned(turn: ReadTurn, score: Score) -> list[Cell]:
    votes = ", ".join(f"{one.left}{one.op}{one.right}" for one in turn.parsed.comparisons)
    credits = [
        f"{'/'.join(filter(None, (one.stream, one.component)))} {one.value:.3g}"
        for one in score.credits
        if (one.agent, one.round) == turn.key and one.span is None and one.value is not None
    ]
    return [votes, ", ".join(credits)]


def _advantage(
    debate: int, turn: ReadTurn, means: Mapping[tuple[int, int, bytes], float]
) -> float | None:
    reply = turn.turn.reply
    if reply is None:
        return None
    return means.get((debate, turn.key.agent, np.array(reply.token_ids, np.int64).tobytes()))


def _mean_advantages(batch: "Batch") -> dict[tuple[int, int, bytes], float]:
    """Return the mean advantage of each turn's tokens, by debate, agent and these tokens."""
    found = {}
    for row in batch.rows:
        for segment in range(1, int(row.segments.max(initial=0)) + 1):
            own = row.segments == segment
            key = row.debate, row.agent, row.tokens[own].astype(np.int64).tobytes()
            found[key] = float(row.advantages[own].mean())
    return found


def _plain(text: str) -> str:
    """Return a text that every service can encode, without what is beyond the most characters."""
    return text[:_MOST_TEXT].encode("utf-8", "replace").decode()


def histograms_of(batch: "Batch") -> "dict[str, Floats]":
    """Return the advantages of all sampled tokens, and how many tokens each turn has."""
    if not batch.rows:
        return {}
    advantages = [row.advantages[row.mask > 0] for row in batch.rows]
    lengths = [np.bincount(row.segments)[1:] for row in batch.rows if row.segments.any()]
    found = {"advantage": np.concatenate(advantages)}
    if lengths:
        found["turn_tokens"] = np.concatenate(lengths).astype(np.float32)
    finite = {name: values[np.isfinite(values)] for name, values in found.items()}
    return {f"histograms/{name}": values for name, values in finite.items() if len(values)}
