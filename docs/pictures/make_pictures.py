"""Draw the pictures of the documentation from real debates, rewards, rows and packs.

python docs/pictures/make_pictures.py          writes them beside this file
python docs/pictures/make_pictures.py --check  exits 1 if one of the files differs
"""

import argparse
import ast
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from math import isclose
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np
from drawing import Picture, signed, tone
from lessons import QUESTION, held, lesson, value_of
from turn_pictures import VOTES, debate_picture, turn_picture

from debate_protocol import Question, Simultaneous, Transcript, TurnRequest
from debate_protocol.types import TurnKey
from debate_rewards import V2
from debate_rewards.reward import read_debate, score_debates
from debate_rewards.votes import Vote, all_votes, ballots
from debate_train.advantages import AdvantageConfig
from debate_train.batches.packs import PrefixForest
from debate_train.batches.row_types import filling_order, shared_length
from debate_train.batches.rows import build_batch
from debate_train.losses import PpoClip
from debate_train.playing.rollouts import Rollouts
from debate_train.running import loop
from debate_train.trainers import TorchTrainer, Trainer

HERE = Path(__file__).resolve().parent
TEXTS = HERE.parents[1] / "recipes/data/gsm8k_50.jsonl"

JUDGED = {
    "this question": ("<><>=<", "=>=>==", ">>==<<", ">==<<>", ">=>>=>"),
    "the other question": (">>>=>>", ">=>>><", ">>>>>=", "=>>><>", ">>=>>>"),
}
"""Of each question the verdicts of five judges, each on the pairs of the others in order."""


def voted(name: str, verdicts: Sequence[str]) -> Transcript:
    """Return a debate of five agents with these verdicts."""
    form = Simultaneous(num_agents=5, max_rounds=2, style="compact", personas="none")

    def script(request: TurnRequest) -> str:
        pairs = combinations([agent for agent in range(5) if agent != request.agent], 2)
        said = zip(pairs, verdicts[request.agent], strict=True)
        lines = [f"Agent {a} {verdict} Agent {b}" for (a, b), verdict in said]
        votes = "\n".join(lines) if request.round else "N/A"
        return f"<solution>42</solution><comparison>{votes}</comparison>"

    return held(form, script, Question(name, QUESTION.text))


def votes_picture() -> str:
    """Return the votes on one question, and what peer prediction pays one judge for its own.

    Raises:
        ValueError: The reward pays something else than its formula.
    """
    debates = [voted(name, verdicts) for name, verdicts in JUDGED.items()]
    here, there = (all_votes(ballots(read_debate(debate))) for debate in debates)
    counts = Counter(vote.verdict for vote in there)
    usual = {verdict: count / len(there) for verdict, count in counts.items()}
    score = V2(consensus="peer_prediction", judge_credit="line")(debates)[0]
    paid = {c.span: c.value for c in score.credits if (c.agent, c.round) == (0, 1)}
    picture = Picture(640, 396, "Votes of five judges, and what peer prediction pays the first")
    picture.text(8, 22, "Peer prediction: agreement beyond habit", "title")
    lead = "Five agents judge each other's answers to a question, pair by pair:"
    picture.text(8, 41, lead, "soft")
    _matrix(picture, here)
    labels = (
        "judge 0 says",
        "share of the pair's other judges who do",
        "− share of all votes elsewhere",
        "= agreement beyond habit, by hand",
        "credit of the line, by the reward v2",
    )
    for row, label in enumerate(labels):
        look = "s2 bold" if row == 0 else "bold" if row > 2 else ""
        picture.text(8, 226 + 20 * row, label, look)
    values = []
    for vote in (vote for vote in here if vote.judge.agent == 0):
        others = [v.verdict for v in here if v.pair == vote.pair and v.judge.agent != 0]
        share, credit = others.count(vote.verdict) / len(others), paid[vote.span]
        values.append(share - usual[vote.verdict])
        if credit is None or not isclose(credit, values[-1]):
            raise ValueError(f"{vote}: by hand {values[-1]}, by the reward {credit}")
        numbers = (
            f"{share:.2f}",
            f"−{usual[vote.verdict]:.2f}",
            signed(values[-1]),
            signed(credit),
        )
        for row, words in enumerate((vote.verdict, *numbers)):
            look = f"bold {tone(credit)}" if row > 2 else "" if row else "mono bold"
            picture.text(_column(vote), 226 + 20 * row, words, f"middle {look}")
    worth = value_of(score, TurnKey(0, 1), "judge")
    if worth is None or not isclose(worth, fmean(values)):
        raise ValueError(f"by hand {fmean(values)}, by the reward {worth}")
    said = [f"{verdict} {count} of {len(there)}" for verdict, count in counts.most_common()]
    picture.text(8, 338, f"Elsewhere, here on the only other question: {',  '.join(said)}", "soft")
    means = f"The turn of judge 0 is worth the mean of its {len(values)} lines: {signed(worth)}"
    picture.text(8, 360, means, "bold")
    habit = "On average, who always says > agrees as often as > is said elsewhere: a habit pays 0"
    picture.text(8, 382, habit, "soft")
    return picture.svg()


PAIRS = tuple(combinations(range(5), 2))


def _column(vote: Vote) -> float:
    return 186 + 47.5 * PAIRS.index((vote.left.agent, vote.right.agent))


def _matrix(picture: Picture, votes: Sequence[Vote]) -> None:
    """Draw what each judge says of each pair."""
    for judge in range(5):
        picture.text(8, 88 + 24 * judge, f"judge {judge}", "" if judge else "s2 bold")
    for number, (low, high) in enumerate(PAIRS):
        picture.text(186 + 47.5 * number, 66, f"{low} : {high}", "middle soft")
    for vote in votes:
        x, y = _column(vote), 74 + 24 * vote.judge.agent
        picture.box(x - 20, y, 40, 20, "plain" if vote.judge.agent else "said again")
        picture.text(x, y + 14, vote.verdict, "mono middle bold")


@dataclass(frozen=True)
class Bar:
    """A row in its pack: lengths of its parts, and how much an earlier row has computed of it."""

    name: str
    parts: tuple[tuple[str, int], ...]
    known: int

    @property
    def length(self) -> int:
        """All its tokens that are computed where rows share nothing."""
        return sum(length for _, length in self.parts)


Conversation = Literal["append", "shared"]


def prefix_bars(conversation: Conversation) -> tuple[list[Bar], int]:
    """Return the rows of a debate as its pack holds them, and the tokens that it computes.

    Raises:
        ValueError: The trainer's pack has another number of tokens.
    """
    texts = [json.loads(line)["question"] for line in TEXTS.read_text("utf-8").splitlines()]
    form = Simultaneous(num_agents=3, max_rounds=2, personas="none", conversation=conversation)

    def script(request: TurnRequest) -> str:
        number = 4 * (3 * request.round + request.agent)
        solution, evaluation = (" ".join(texts[n : n + 2]) for n in (number, number + 2))
        said, votes = (evaluation, VOTES[request.agent]) if request.round else ("N/A", "N/A")
        return (
            f"<solution> {solution} </solution> <evaluation> {said} </evaluation> "
            f"<comparison> {votes} </comparison>"
        )

    taught = lesson(form, script)
    turns = taught.debate.turns
    opening = {t.agent: np.array(t.reply.prompt_ids) for t in turns if t.round == 0 and t.reply}
    batch = build_batch([taught.debate], [{}], {}, taught.tokenizer)
    forest, bars = PrefixForest(), []
    for unit in filling_order(batch, range(len(batch.rows)), "prefix"):
        (number,), (length,), (shared,) = unit.rows, unit.lengths, unit.shared
        row = batch.rows[number]
        begun = shared_length(row.tokens, opening[row.agent])
        kinds = [
            "said" if is_sampled else "rules" if place < begun else "read"
            for place, is_sampled in enumerate(row.mask[:length])
        ]
        parts = tuple((kind, len(list(run))) for kind, run in groupby(kinds))
        rounds = {"said": "round 1", "read": "round 2"}[parts[1][0]]
        name = f"agent {row.agent}, {'both rounds' if len(parts) == 4 else rounds}"
        bars.append(Bar(name, parts, length - forest.add(length, shared)))
    (packs,) = TorchTrainer().packs(batch, PpoClip())
    computed = sum(pack.tokens_BT.numel() for pack in packs)
    if computed != forest.tokens:
        raise ValueError(f"{conversation}: packs compute {computed} tokens, not {forest.tokens}")
    return bars, computed


def prefixes_picture() -> str:
    """Return the rows of one debate under two conversations: what is computed, and what again."""
    picture = Picture(640, 374, "What an update computes of a debate: append beside shared")
    picture.text(8, 22, "What an update computes of one debate", "title")
    lead = "Three agents, two rounds, one bar a row; faint: computed already, for a row above"
    picture.text(8, 41, lead, "soft")
    legend = (
        ("rules", 8, "rules and question"),
        ("read", 160, "turns that are read, and the task"),
        ("said", 392, "own turns, which are trained"),
    )
    for kind, x, label in legend:
        picture.box(x, 53, 12, 12, kind)
        picture.text(x + 18, 63, label, "small")
    names: tuple[Conversation, ...] = ("append", "shared")
    drawn = {name: prefix_bars(name) for name in names}
    unit = 496 / max(bar.length for bars, _ in drawn.values() for bar in bars)
    y = 92
    for name, (bars, computed) in drawn.items():
        held = sum(bar.length for bar in bars)
        picture.text(8, y, f"conversation: {name}", "bold")
        picture.text(632, y, f"{computed:,} of {held:,} tokens computed", "bold end")
        for bar in bars:
            y += 24
            picture.text(8, y, bar.name, "small")
            _bar(picture, bar, y - 13, unit)
        y += 38
    return picture.svg()


def _bar(picture: Picture, bar: Bar, y: float, unit: float) -> None:
    at = 0
    for kind, length in bar.parts:
        known = min(max(bar.known - at, 0), length)
        for begin, size, look in ((at, known, "again"), (at + known, length - known, "")):
            if size:
                picture.box(136 + unit * begin, y, unit * size, 18, f"{kind} {look}")
        at += length


Calls = Mapping[str, Callable[..., object]]
STEPS: tuple[tuple[str, str, Calls], ...] = (
    ("Play", "the debates of a step", {"rollouts.take": Rollouts.take}),
    ("Score", "credits of turns, and of parts of them", {"score_debates": score_debates}),
    (
        "Rows",
        "credits less a baseline, then for each token",
        {"advantage.compute": AdvantageConfig.compute, "build_batch": build_batch},
    ),
    ("Train", "a loss over packs of rows, and an update", {"trainer.step": Trainer.step}),
    ("Refresh", "the engine loads the new weights", {"rollouts.refresh": Rollouts.refresh}),
)
"""Of each part of a step its name, what it does, and its calls as the loop writes them."""


def step_picture() -> str:
    """Return the calls of a training step, as the loop makes them, with what goes in and out.

    Raises:
        ValueError: The loop makes no such call.
    """
    tree = ast.parse(inspect.getsource(loop))
    made = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    picture = Picture(640, 464, "The calls of a training step")
    picture.text(8, 22, "A training step, as running/loop.py makes it", "title")
    y = 38
    for number, (name, does, calls) in enumerate(STEPS, 1):
        height = 32 + 17 * len(calls)
        picture.box(8, y, 544, height, "card")
        picture.text(20, y + 20, f"{number}  {name}", "bold")
        picture.text(110, y + 20, does, "soft")
        for row, (call, function) in enumerate(calls.items()):
            if call not in made or call.rpartition(".")[2] != function.__name__:
                raise ValueError(f"{call}: running/loop.py makes no such call")
            takes = [name for name in inspect.signature(function).parameters if name != "self"]
            gives = f" → {returned(function)}" * (row < len(calls) - 1)
            words = f"{call}({', '.join(takes)}){gives}"
            picture.text(20, y + 39 + 17 * row, words, "mono s1")
        y += height
        if number < len(STEPS):
            picture.path(f"M40,{y}V{y + 29}")
            picture.head(40, y + 36, turned=180)
            goes_on = f"{returned(function)}{' of metrics' * (name == 'Train')}"
            picture.text(54, y + 22, goes_on, "mono")
            y += 37
    picture.path(f"M552,{y - 24}H574V62H561")
    picture.head(553, 62, turned=-90)
    for row, words in enumerate((returned(Trainer.weights), "n + 1")):
        picture.text(581, 244 + 16 * row, words, "mono")
    return picture.svg()


def returned(function: Callable[..., object]) -> str:
    """Return the type that a function returns, without the modules of its names."""
    named = inspect.formatannotation(inspect.signature(function).return_annotation)
    return re.sub(r"\w+\.", "", named).strip("'")


PICTURES: Mapping[str, Callable[[], str]] = {
    "debate.svg": debate_picture,
    "turn.svg": turn_picture,
    "votes.svg": votes_picture,
    "prefixes.svg": prefixes_picture,
    "step.svg": step_picture,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pictures, or say which files differ; return the exit code."""
    parser = argparse.ArgumentParser(description="Draw the pictures of the documentation.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if one differs")
    is_check, differing = parser.parse_args(arguments).check, []
    for name, draw in PICTURES.items():
        file, drawn = HERE / name, draw()
        if not is_check:
            file.write_text(drawn, encoding="utf-8")
        elif not file.exists() or file.read_text("utf-8") != drawn:
            differing.append(name)
    for name in differing:
        print(f"{name} is not what the code draws: run python docs/pictures/make_pictures.py")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
