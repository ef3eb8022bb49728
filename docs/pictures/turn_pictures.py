"""The pictures of a debate and of a turn, down to the advantages of their tokens."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from drawing import LETTER, Picture, signed, tone
from lessons import Lesson, Token, lesson, value_of

from debate_protocol import Contract, Simultaneous, Turn, TurnRequest
from debate_protocol.types import TurnKey
from debate_rewards import V2, Component, Mixed, Score, TruthJudge, Verifiable
from debate_rewards.reward import read_debate
from debate_rewards.votes import all_votes, ballots, points

FIRST = ("6 * 7 = 42", "6 * 7 = 48", "7 * 6 = 42")
VOTES = ("Agent 1 = Agent 2", "Agent 0 = Agent 2", "Agent 0 > Agent 1")
HALVES = {0.0: "0", 0.5: "½", 1.0: "1"}


def debate_picture() -> str:
    """Return a debate of three agents, its votes, and what tokens of one agent earn by them."""
    contract = Contract("short", ("solution", "comparison"))
    form = Simultaneous(
        num_agents=3, max_rounds=2, style="compact", personas="none", contract=contract
    )

    def script(request: TurnRequest) -> str:
        said = ("42", VOTES[request.agent]) if request.round else (FIRST[request.agent], "N/A")
        return "<solution> {} </solution> <comparison> {} </comparison>".format(*said)

    taught = lesson(form, script)
    by_votes = Component(reward=V2(consensus="none"), weight=1)
    by_truth = Component(reward=TruthJudge(), weight=1)
    score, batch = taught.rows(Mixed(components={"votes": by_votes, "truth": by_truth}))
    picture = Picture(640, 456, "A debate, its votes, and the advantages of tokens")
    picture.text(100, 22, "What is 6 * 7?", "title")
    for y, lines in (
        (54, ("Round 1", "each answers", "on its own")),
        (145, ("", "votes on the", "first answers")),
        (234, ("Round 2", "each reads", "the others,", "then votes")),
    ):
        for row, words in enumerate(lines):
            picture.text(8, y + 2 + 14 * row, words, "soft small" if row else "bold")
    _debate(picture, taught, score)
    picture.path("M8,304H632")
    picture.text(8, 326, "What agent 0 learns: the advantage of each token", "bold")
    picture.text(632, 326, "green: more likely, red: less, grey: neither", "soft small end")
    for number, y in enumerate((346, 406)):
        picture.text(8, y + 14, f"Round {number + 1}", "bold")
        _strip(picture, taught.tokens(TurnKey(0, number), batch)[1:], y)
    return picture.svg()


def _debate(picture: Picture, taught: Lesson, score: Score) -> None:
    """Draw a card for each turn, and an arrow for what each vote gives each turn that it judges."""
    given: dict[TurnKey, list[float]] = {turn.key: [] for turn in taught.debate.turns}
    for vote in all_votes(ballots(read_debate(taught.debate))):
        share = points(vote.verdict, "half")
        assert share is not None
        for judged, won in zip(vote.pair, share, strict=True):
            _arrow(picture, vote.judge.agent, judged.agent, won)
            given[judged].append(won)
    checked = Verifiable(values="zero_one")([taught.debate])[0]
    for turn in taught.debate.turns:
        _card(picture, turn, is_right=value_of(checked, turn.key, "generator") == 1)
        x, votes = 109 + 181 * turn.agent, given[turn.key]
        if turn.round == 0:
            worth = " + ".join(map(HALVES.__getitem__, votes))
            worth += f" of {len(votes)} votes: {signed(_value(score, turn.key))}"
            picture.text(x, 97, worth, "s1 bold small")


def _card(picture: Picture, turn: Turn, *, is_right: bool) -> None:
    x, y = 100 + 181 * turn.agent, 214 if turn.round else 36
    picture.box(x, y, 170, 74, "card")
    picture.text(x + 9, y + 19, f"Agent {turn.agent}", "bold")
    sign, look = ("✓ right", "good") if is_right else ("✗ wrong", "bad")
    picture.text(x + 161, y + 19, sign, f"{look} end")
    picture.text(x + 9, y + 39, "42" if turn.round else FIRST[turn.agent], "mono")
    if turn.round:
        picture.text(x + 9, y + 61, VOTES[turn.agent], "mono s2")


def _arrow(picture: Picture, judge: int, judged: int, won: float) -> None:
    """Draw a vote from its judge up to the turn that it is about."""
    (third,) = {0, 1, 2} - {judge, judged}
    start = 185 + 181 * judge + (32 if judged > third else -32)
    end = 185 + 181 * judged + (32 if judge > third else -32)
    look = {0.0: "bad", 0.5: "tie", 1.0: "good"}[won]
    picture.path(f"M{start},213C{start},165 {end},160 {end},118", look)
    picture.head(end, 111, look)
    # The line comes from the other side.
    picture.text(end + (-9 if judge > judged else 9), 130, HALVES[won],
                 "bold end" if judge > judged else "bold")  # fmt: skip


def _strip(picture: Picture, tokens: Sequence[Token], y: float) -> None:
    """Draw the tokens of a turn, and which stream gives them something and why."""
    x = 100.0
    whose = {
        "generator": ("s1", "for the votes on this answer"),
        "judge": ("s2", "for this vote: one of the two answers was wrong"),
    }
    for advantage, run in groupby(tokens, key=lambda token: token.advantage):
        begins, own = x, list(run)
        for token in own:
            width = LETTER * len(token.shown) + 7
            picture.box(x, y, width, 20, tone(advantage))
            picture.text(x + 3.5, y + 14, token.shown, "mono" if advantage else "mono soft")
            x += width + 2
        for stream, (look, said) in whose.items():
            if any(token.by_stream[stream] for token in own):
                picture.path(f"M{begins:.4g},{y + 24}H{x - 2:.4g}", look)
                picture.text(begins, y + 39, f"{signed(advantage)} {said}", f"{look} small")


TURN = TurnKey(0, 1)
LINES = {
    0: ("2 > 1", "3 = 1", "2 > 3"),
    1: ("0 > 2", "0 = 3", "2 > 3"),
    2: ("0 > 1", "0 > 3", "1 = 3"),
    3: ("0 > 1", "2 > 0", "1 > 2"),
}
"""What each agent says about the others, in the second round as in the third."""


def turn_picture() -> str:
    """Return a turn from its sections to the advantage of each token, in both streams."""
    form = Simultaneous(num_agents=4, max_rounds=3, style="compact", personas="none")

    def script(request: TurnRequest) -> str:
        lines = [f"Agent {a} {op} Agent {b}" for a, op, b in map(str.split, LINES[request.agent])]
        said = ("Agent 2 agrees", "\n".join(lines)) if request.round else ("N/A", "N/A")
        return (
            "<solution> 42 </solution> <evaluation> {} </evaluation> "
            "<comparison> {} </comparison>".format(*said)
        )

    taught = lesson(form, script, [f"Agent {n}" for n in range(4)])
    score, batch = taught.rows(V2(judge_credit="line"))
    prompt, *tokens = taught.tokens(TURN, batch)
    picture = Picture(640, 452, "A turn: sections, tokens, mask and advantages")
    picture.text(8, 22, "One turn, token by token", "title")
    worth, judged = _value(score, TURN), _value(score, TURN, "judge")
    votes = [token for token in tokens if token.section == "comparison"]
    baseline = judged - votes[0].advantage
    means = f"generator {signed(worth - tokens[0].advantage)}, judge {signed(baseline)}"
    picture.text(8, 41, f"Advantage = credit − mean of the round. Means: {means}", "soft")
    cut = [token.start for token in votes if "\n" in token.text][1]
    parts = [
        [prompt, *(token for token in tokens if token not in votes)],
        [token for token in votes if token.start <= cut],
        [token for token in votes if token.start > cut],
    ]
    marks = [(-1, 0, prompt.section, "soft"), *_marks(tokens, score)]
    for number, part in enumerate(parts):
        _token_table(picture, part, 62 + 132 * number, marks)
    return picture.svg()


def _value(score: Score, key: TurnKey, stream: str = "generator") -> float:
    value = value_of(score, key, stream)
    assert value is not None
    return value


Mark = tuple[int, int, str, str]
"""A span of the text, what is written over it, and how that looks."""


def _marks(tokens: Sequence[Token], score: Score) -> Iterator[Mark]:
    """Yield the sections of the turn, as credit reads them, and what has a credit of its own."""
    groups = [(name, list(run)) for name, run in groupby(tokens, key=lambda token: token.section)]
    ends = [run[0].start for _, run in groups[1:]] + [tokens[-1].start + len(tokens[-1].text)]
    for (name, run), end in zip(groups, ends, strict=True):
        said, start = f"{name} [{run[0].start}:{end}]", run[0].start
        if name == "comparison":
            said += f", credit {signed(_value(score, TURN, 'judge'))} outside of the lines"
        yield start, end, said, "soft"
    yield 0, ends[1], f"credit {signed(_value(score, TURN))} by the votes on the turn", "s1"
    for credit in score.credits:
        if (credit.agent, credit.round) == TURN and credit.span is not None:
            said = "no signal" if credit.value is None else f"credit {signed(credit.value)}"
            yield *credit.span, said, "s2"


def _token_table(
    picture: Picture, tokens: Sequence[Token], y: float, marks: Sequence[Mark]
) -> None:
    """Draw tokens in a line, marks of spans of the text over them and their numbers below."""
    x, places = 82.0, dict[int, tuple[float, float]]()
    labels = {"begins at": "soft", "mask": "soft", "generator": "s1", "judge": "s2"}
    for number, (label, look) in enumerate({**labels, "advantage": "bold"}.items()):
        picture.text(8, y + 55 + 14 * number, label, f"small {look}")
    for token in tokens:
        width = max(LETTER * len(token.shown) + 6, 37)
        # A span holds the tokens whose first character that is no space it holds.
        places[token.start + token.text.startswith(" ")] = (x, x + width)
        picture.box(x, y + 24, width, 18, tone(token.advantage))
        middle = x + width / 2
        picture.text(middle, y + 37, token.shown, "mono middle")
        begins = "" if token.section == "prompt" else str(token.start)
        earned = [token.by_stream["generator"], token.by_stream["judge"], token.advantage]
        for number, words in enumerate([begins, f"{token.mask:g}", *map(signed, earned)]):
            look = "small middle bold" if number == 4 else "small middle"
            picture.text(middle, y + 55 + 14 * number, words, look)
        x += width + (2 if begins else 11)
    for start, end, words, look in marks:
        inside = [place for at, place in places.items() if start <= at < end]
        if inside:
            level = y + (4 if look == "soft" else 20)
            picture.path(f"M{inside[0][0]:.4g},{level}H{inside[-1][1]:.4g}", look)
            picture.text(inside[0][0], level - 4, words, f"small {look}")
