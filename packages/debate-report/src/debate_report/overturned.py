"""The one debate of a run to read first: where votes overturned the majority, or failed to."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from markupsafe import Markup

from debate_protocol.types import TurnKey
from debate_report.debates import Recorded
from debate_report.json_values import finite
from debate_report.page_templates import render
from debate_rewards.answer_checking import answer_classes
from debate_rewards.decisions import standings
from debate_rewards.reward import ReadTurn
from debate_rewards.votes import Vote, ballots, tally

# Of one turn. The list of debates has the whole text.
MAX_CHARS = 1200
MAX_TOKENS = 500
MAX_AGENTS = 12
# Steps of a token's color; the strongest advantage of a debate has the last.
COLOR_STEPS = 6
TAG = re.compile(r"\s*</?[A-Za-z_]+>\s*")

Outcome = Literal["mended", "missed", "spoiled", "changed", "followed"]
# What is shown first; the words of each are in overturned.html.
OUTCOMES: tuple[Outcome, ...] = ("mended", "missed", "spoiled", "changed", "followed")


@dataclass(frozen=True, slots=True)
class Choice:
    """An answer that a debate's first answers agree on, or that its votes prefer.

    Attributes:
        answer: Its text in one of the turns.
        verdict: `right` or `wrong`; `None` where it is not known.
        agents: The agents that gave it.
    """

    answer: str
    verdict: str | None
    agents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VotedDebate:
    """A debate with one most frequent answer among the judged turns, and one preferred by votes.

    Attributes:
        number: Its number among all debates of the page.
        debate: The debate.
        majority: The most frequent answer of the judged turns.
        voted: The answer of the turns with the highest standing.
        outcome: `mended` where votes overturned a wrong majority for a right answer, `spoiled` the
            reverse, `missed` where a wrong majority stood although a right answer was judged,
            `changed` for any other answer than the majority's, `followed` for the same.
        margin: The standing of the voted answer above that of any other.
    """

    number: int
    debate: Recorded
    majority: Choice
    voted: Choice
    outcome: Outcome
    margin: float


def overturned(debates: Sequence[Recorded]) -> Markup:
    """Render the debate, with the advantage of each token; nothing for a run without votes."""
    voted_debates = []
    for number, debate in enumerate(debates):
        # Demonstrations are written by a script, and evaluations teach nothing.
        if debate.demonstrated or debate.evaluated or debate.imported:
            continue
        voted_debate = weigh(number, debate)
        if voted_debate is not None:
            voted_debates.append(voted_debate)
    if not voted_debates:
        return Markup()
    chosen = choose(voted_debates)
    num_by_outcome = Counter(voted.outcome for voted in voted_debates)
    return render(
        "overturned.html",
        outcome=chosen.outcome,
        majority=chosen.majority,
        voted=chosen.voted,
        num_agents=len(_judged_turns(chosen.debate)),
        number=chosen.number,
        phase=chosen.debate.phase,
        step=chosen.debate.step,
        question=chosen.debate.transcript.question,
        agents=_agent_cards(chosen.debate),
        has_credit=chosen.debate.has_token_credit,
        counts={outcome: num_by_outcome[outcome] for outcome in OUTCOMES},
        total=len(voted_debates),
    )


def weigh(number: int, debate: Recorded) -> VotedDebate | None:
    """Compare the votes of a debate with the majority of the judged turns.

    Returns:
        `None` where nothing was voted on, or where the majority or the votes are tied.
    """
    standing_of = {turn.key: standing for turn, standing in standings(debate.read)}
    keys = list(standing_of)
    answers = [debate.answers.get(key) for key in keys]
    classes = answer_classes(debate.transcript.question, answers)
    keys_of_class: dict[int, list[TurnKey]] = {}
    for key, number_of_class in zip(keys, classes, strict=True):
        if number_of_class is not None:
            keys_of_class.setdefault(number_of_class, []).append(key)
    if not keys_of_class:
        return None

    by_size = sorted(keys_of_class.values(), key=len, reverse=True)
    if len(by_size) > 1 and len(by_size[0]) == len(by_size[1]):
        return None

    # The best turn of each answer represents it, as in the decision by votes.
    ranking = []
    for class_keys in keys_of_class.values():
        best_standing = max(standing_of[key] for key in class_keys)
        ranking.append((best_standing, class_keys))
    ranking.sort(key=lambda ranked: -ranked[0])
    margin = 0.0
    if len(ranking) > 1:
        margin = ranking[0][0] - ranking[1][0]
        if margin <= 0:
            return None

    choices = []
    for class_keys in (by_size[0], ranking[0][1]):
        choice = Choice(
            answer=debate.answers[class_keys[0]] or "",
            verdict=debate.verdicts.get(class_keys[0]),
            agents=tuple(key.agent for key in class_keys),
        )
        choices.append(choice)
    majority, voted = choices
    verdicts = {debate.verdicts.get(key) for key in keys}
    outcome = _outcome(majority, voted, has_right_answer="right" in verdicts)
    return VotedDebate(number, debate, majority, voted, outcome, margin)


def _outcome(majority: Choice, voted: Choice, *, has_right_answer: bool) -> Outcome:
    if majority == voted:
        # A wrong majority is a missed chance only if some turn had the right answer.
        is_missed = majority.verdict == "wrong" and has_right_answer
        return "missed" if is_missed else "followed"
    if majority.verdict == "wrong" and voted.verdict == "right":
        return "mended"
    if majority.verdict == "right" and voted.verdict == "wrong":
        return "spoiled"
    return "changed"


def choose(voted_debates: Sequence[VotedDebate]) -> VotedDebate:
    """Choose the debate to show: by its outcome, with known advantages, of the last step."""

    def rank(voted: VotedDebate) -> tuple[float, ...]:
        is_most = 2 * len(voted.majority.agents) > len(_judged_turns(voted.debate))
        return (
            -OUTCOMES.index(voted.outcome),
            voted.debate.has_token_credit,
            is_most,
            voted.debate.step,
            voted.margin,
            -voted.number,
        )

    return max(voted_debates, key=rank)


def _judged_turns(debate: Recorded) -> list[ReadTurn]:
    return [turn for turn, _ in standings(debate.read)][:MAX_AGENTS]


def _agent_cards(debate: Recorded) -> list[dict[str, object]]:
    """Build each agent's card: its text, the votes on it, and its judgments of others."""
    all_ballots = ballots(debate.read)
    voting_round = max(key.round for key, ballot in all_ballots.items() if ballot.votes)
    votes: list[Vote] = []
    for key, ballot in all_ballots.items():
        if key.round == voting_round:
            votes += ballot.votes
    shares = tally(votes)

    # An agent's judged turn is followed by the turns with its votes.
    judged_turns = _judged_turns(debate)
    keys_by_agent: dict[int, list[TurnKey]] = {turn.key.agent: [turn.key] for turn in judged_turns}
    for key in sorted(debate.read.judges):
        if key.round == voting_round and key not in keys_by_agent.get(key.agent, [key]):
            keys_by_agent[key.agent].append(key)

    # Colors of all cards share one scale, so that agents can be compared.
    strongest = 0.0
    for keys in keys_by_agent.values():
        for key in keys:
            sizes = [abs(advantage) for advantage in _advantages(debate.credit_of(key))]
            strongest = max([strongest, *sizes])

    cards = []
    for turn in judged_turns:
        parts = []
        for key in keys_by_agent[turn.key.agent]:
            text = debate.read.judges[key].turn.text
            parts.append((key.round + 1, marked_tokens(text, debate.credit_of(key), strongest)))
        num_up = num_votes = 0.0
        share = shares.get(turn.key)
        if share:
            num_up = share.up
            num_votes = share.up + share.down
        cards.append(
            {
                "agent": turn.key.agent,
                "answer": debate.answers.get(turn.key) or "–",
                "verdict": debate.verdicts.get(turn.key),
                "up": f"{num_up:g}",
                "votes": f"{num_votes:g}",
                "share": 100 * num_up / num_votes if num_votes else 0.0,
                "parts": parts,
            }
        )
    return cards


@dataclass(frozen=True, slots=True)
class MarkedToken:
    """A piece of text with the color and the words of its advantage."""

    text: str
    kind: str
    note: str


def marked_tokens(text: str, credit: Mapping[str, Any], strongest: float) -> list[MarkedToken]:
    """Divide the text of a turn into its tokens, each marked by its advantage.

    Args:
        text: The reply.
        credit: Of the turn: `starts`, the first character of each token, and `tokens`, runs of
            tokens with their advantage.
        strongest: The largest size of an advantage on the page.
    """
    advantages = _advantages(credit)
    starts = [start for start in credit.get("starts") or () if isinstance(start, int)]
    bounds = [*starts[: len(advantages)], len(text)]
    tokens = []
    # Text before the first token, or without any tokens, has no advantage.
    unmarked_end = bounds[0] if starts else len(text)
    if not starts or unmarked_end > 0:
        tokens.append(MarkedToken(text[: min(unmarked_end, MAX_CHARS)], "", ""))
    for start, end, advantage in zip(bounds, bounds[1:], advantages, strict=False):
        if start >= MAX_CHARS or len(tokens) >= MAX_TOKENS:
            break
        tokens.append(_mark(text[start:end], advantage, strongest))
    if len(text) > MAX_CHARS or len(advantages) > MAX_TOKENS:
        tokens.append(MarkedToken(" …", "", ""))
    return tokens


def _mark(text: str, advantage: float, strongest: float) -> MarkedToken:
    kinds = ["token"]
    if advantage:
        level = max(1, round(COLOR_STEPS * abs(advantage) / strongest))
        kinds += ["up" if advantage > 0 else "down", f"a{level}"]
    if TAG.fullmatch(text):
        kinds.append("tag")
    sign = "+" if advantage > 0 else ""
    note = f"advantage {sign}{advantage:.3g}".replace("-", "−")
    return MarkedToken(text, " ".join(kinds), note)


def _advantages(credit: Mapping[str, Any]) -> list[float]:
    """List the advantage of each token from runs of equal ones."""
    advantages: list[float] = []
    for run in credit.get("tokens") or ():
        num_tokens, advantage = run[0], finite(run[1])
        advantages += [advantage or 0.0] * min(num_tokens, MAX_TOKENS)
    return advantages
