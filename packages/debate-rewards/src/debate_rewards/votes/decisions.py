r"""What a debate as a whole answers: by majority, by its agents' votes, or by its center.

Ties are drawn by `random.Random(f"{seed}\n{transcript.id}")`, so that the same seed always gives
the same decision on a debate and different debates draw apart.
"""

import random
from collections.abc import Sequence

from debate_protocol.types import Transcript, TurnKey
from debate_rewards.answers.checking import answer_classes, kind_of
from debate_rewards.answers.final_answers import final_answer
from debate_rewards.reading import ReadDebate, ReadTurn, read_debate
from debate_rewards.votes.ballots import Share, ballots, tally


def majority(transcript: Transcript, seed: int) -> str | None:
    """Return the answer that most agents gave in the last round, None when nobody answered.

    Answers are counted by equivalence. Among equally large classes one is drawn, repeatably by
    seed and transcript id.
    """
    return majority_of(read_debate(transcript), seed)


def majority_of(debate: ReadDebate, seed: int) -> str | None:
    """Return the majority's answer of a debate that has been read; see `majority`."""
    transcript = debate.transcript
    answers = [answer_text(debate, turn) for turn in last_turns(debate).values()]
    classes = answer_classes(transcript.question, answers)
    sizes: dict[int, int] = {}
    for number in classes:
        if number is not None:
            sizes[number] = sizes.get(number, 0) + 1
    if not sizes:
        return None
    largest = max(sizes.values())
    chosen = _draw(transcript, seed, [n for n, size in sizes.items() if size == largest])
    return answers[classes.index(chosen)]


def peer_vote(transcript: Transcript, seed: int) -> str | None:
    """Return the answer of the agent whom the others voted up most, None when nobody answered.

    The votes are those of the last round in which any were cast; an agent's standing is its votes
    for minus its votes against, ties half each way, and the answer is that of the turn that was
    judged. Equal standings are drawn from, repeatably by seed and transcript id; without any votes
    that is every agent with an answer in the last round.
    """
    return peer_vote_of(read_debate(transcript), seed)


def peer_vote_of(debate: ReadDebate, seed: int) -> str | None:
    """Return the peers' choice of a debate that has been read; see `peer_vote`."""
    candidates = _standings(debate) or [
        (turn, 0.0) for turn in last_turns(debate).values() if not turn.failed
    ]
    if not candidates:
        return None
    best = max(standing for _, standing in candidates)
    top = [turn for turn, standing in candidates if standing == best]
    return answer_text(debate, top[_draw(debate.transcript, seed, range(len(top)))])


def central(transcript: Transcript) -> str | None:
    """Return the last answer of the agent that aggregates under topology `central`.

    None when it never spoke or its last turn has no answer.

    Raises:
        ValueError: The topology is another one.
    """
    return central_of(read_debate(transcript))


def central_of(debate: ReadDebate) -> str | None:
    """Return the center's answer of a debate that has been read; see `central`."""
    rules = debate.transcript.protocol
    if rules.topology != "central":
        raise ValueError(
            f"debate {debate.transcript.id!r}, decision central: found topology "
            f"{rules.topology!r}, expected 'central'"
        )
    spoken = [turn for key, turn in debate.turns.items() if key.agent == (rules.center or 0)]
    return answer_text(debate, max(spoken, key=lambda turn: turn.key.round)) if spoken else None


def decisions_of(debate: ReadDebate, seed: int) -> dict[str, str | None]:
    """Return the answer of every decision rule that applies to the debate, by name."""
    decided = {"majority": majority_of(debate, seed), "peer_vote": peer_vote_of(debate, seed)}
    if debate.transcript.protocol.topology == "central":
        decided["central"] = central_of(debate)
    return decided


def last_turns(debate: ReadDebate) -> dict[int, ReadTurn]:
    """Return the turns of the last round, by agent."""
    last = debate.last_round
    return {key.agent: turn for key, turn in debate.turns.items() if key.round == last}


def answer_text(debate: ReadDebate, turn: ReadTurn) -> str | None:
    """Return a turn's own final answer as text, None for a failed turn."""
    if turn.failed or turn.parsed.answer is None:
        return None
    answer = final_answer(turn.parsed.answer, kind_of(debate.transcript.question))
    return None if answer is None else answer.text


def _standings(debate: ReadDebate) -> list[tuple[ReadTurn, float]]:
    """Return each judged agent's latest judged turn with its votes for minus against."""
    cast = ballots(debate)
    voted = [key.round for key, ballot in cast.items() if ballot.votes]
    if not voted:
        return []
    judges = [key for key in cast if key.round == max(voted)]
    shares = tally(vote for key in judges for vote in cast[key].votes)
    latest: dict[int, ReadTurn] = {}
    net: dict[int, float] = {}
    for turn in _judged(debate, judges):
        agent = turn.key.agent
        share = shares.get(turn.key, Share(0.0, 0.0))
        net[agent] = net.get(agent, 0.0) + share.up - share.down
        if agent not in latest or latest[agent].key.round < turn.key.round:
            latest[agent] = turn
    return [(latest[agent], net[agent]) for agent in sorted(latest)]


def _judged(debate: ReadDebate, judges: list[TurnKey]) -> list[ReadTurn]:
    """Return the valid turns that these judges were to judge, each once."""
    found = {
        turn.key: turn
        for key in judges
        for turn in debate.judged_by(debate.judges[key]).values()
        if not turn.failed
    }
    return [found[key] for key in sorted(found)]


def _draw(transcript: Transcript, seed: int, among: Sequence[int]) -> int:
    # The bytes that Python itself would take, but for ids with lone surrogates.
    drawn_by = f"{seed}\n{transcript.id}".encode("utf-8", "surrogatepass")
    return random.Random(drawn_by).choice(among)
