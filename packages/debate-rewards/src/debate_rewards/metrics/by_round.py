"""What rounds of a debate are worth and cost: votes by round, gains, lengths, early agreement."""

from collections.abc import Mapping, Sequence

from debate_protocol.roles import answering_agents
from debate_protocol.types import Turn, TurnKey
from debate_rewards.metrics.answers_given import AnswersGiven
from debate_rewards.metrics.sums import Sums


def add_diversity(sums: Sums, given: AnswersGiven) -> None:
    """Add the answer classes per answer of each round."""
    for round, keys in given.rounds().items():
        classes = [number for key in keys if (number := given.classes[key]) is not None]
        if classes:
            sums.add(f"diversity/round_{round}", len(set(classes)) / len(classes))


def add_rounds(sums: Sums, given: AnswersGiven, right: Mapping[TurnKey, bool]) -> None:
    """Add what needs the truth.

    - `maj/round_R`: whether the majority of the round's answers is right, ties in expectation;
      `maj/first` and `maj/last` are those of the first and the last round (Maj and Debate),
      `maj/delta` the second minus the first (Δ), but for pairs of first turns that are debated:
      there as many second turns are sampled of each pair as are asked for. All are of the same
      debate, so of the same first turns.
    - `pass@k/round_R`: whether any of the round's answers is right, which bounds every choice among
      them, such as the peers' vote among those that they judged.
    - `central/first`, `central/last`, `central/delta`, under topology central: the same of the
      answers of the agent in the center: single answers, no vote.
    - `improvement`: (accuracy of the last round − of the first) / accuracy of the first, a ratio
      of sums over all debates of several rounds, as Δ is of them alone.
    - `right/tokens/round_R`, `wrong/tokens/round_R`: mean number of sampled tokens of the round's
      right and wrong replies; `right/characters/round_R`, `wrong/characters/round_R` of characters.
    - `agreement/accuracy`: whether the majority is right, had the debate been stopped after the
      first round in which all agents give one answer; of the last round where there is none.

    Source: SDRL (paper), tables 1, 3, 4 and 6; ACC-Debate (paper), equation 5.
    """
    rounds = given.rounds()
    if not rounds:
        return
    votes = {round: given.majority(keys) for round, keys in rounds.items()}
    for round, value in votes.items():
        sums.add(f"maj/round_{round}", value)
        sums.add(f"pass@k/round_{round}", float(any(right[key] for key in rounds[round])))
    first, last = min(rounds), max(rounds)
    rules = given.debate.transcript.protocol
    ends = [votes[first], votes[last]][: last - first + 1]
    _add_gain(sums, "maj", ends, of_equals=rules.topology != "pair")
    center = [key for key in right if key.agent == (rules.center or 0)]
    if rules.topology == "central":
        ordered = sorted(center, key=lambda key: key.round)
        _add_gain(sums, "central", [float(right[key]) for key in ordered])
    if first < last:
        began, ended = (_share([right[key] for key in rounds[round]]) for round in (first, last))
        sums.add("improvement", ended - began, began)
    stop = _agreed_round(given)
    sums.add("agreement/accuracy", votes[last if stop is None else stop])
    for key, read in given.debate.turns.items():
        side = "right" if right[key] else "wrong"
        sums.add(f"{side}/characters/round_{key.round}", len(read.turn.text))
        if read.turn.token_counts is not None:
            sums.add(f"{side}/tokens/round_{key.round}", read.turn.token_counts[1])


def add_costs(sums: Sums, given: AnswersGiven) -> None:
    """Add what needs no truth.

    - `tokens/answer`: sampled tokens of the whole debate, which gives one answer.
    - `agreement/reached`: whether all agents give one answer in some round.
    - `agreement/tokens_saved`: share of the sampled tokens that come after the first such round;
      what a debate that stops there would save.

    Tokens are left out where a turn holds neither its reply nor its counts.
    """
    turns = given.debate.transcript.turns
    if not given.debate.turns:
        return
    stop = _agreed_round(given)
    sums.add("agreement/reached", float(stop is not None))
    sampled = _sampled(turns)
    if sampled is not None:
        sums.add("tokens/answer", sampled)
        later = [turn for turn in turns if stop is not None and turn.round > stop]
        sums.add("agreement/tokens_saved", _sampled(later) or 0, sampled)


def _add_gain(sums: Sums, name: str, by_round: Sequence[float], *, of_equals: bool = True) -> None:
    """Add the first and the last value, and between several that are alike the difference."""
    for end, values in (("first", by_round[:1]), ("last", by_round[-1:])):
        for value in values:
            sums.add(f"{name}/{end}", value)
    if len(by_round) > 1 and of_equals:
        sums.add(f"{name}/delta", by_round[-1] - by_round[0])


def _agreed_round(given: AnswersGiven) -> int | None:
    """Return the first round in which all who owe an answer give one and the same."""
    rules = given.debate.transcript.protocol
    for round, keys in given.rounds().items():
        classes = {given.classes[key] for key in keys}
        everyone = len(keys) == len(answering_agents(rules, round))
        if everyone and len(keys) > 1 and len(classes) == 1 and None not in classes:
            return round
    return None


def _share(hits: Sequence[bool]) -> float:
    return sum(hits) / len(hits)


def _sampled(turns: Sequence[Turn]) -> int | None:
    counts = [turn.token_counts for turn in turns]
    return None if None in counts else sum(count[1] for count in counts if count)
