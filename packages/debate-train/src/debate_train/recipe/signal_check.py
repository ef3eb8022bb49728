"""Whether anything can be learned: a scripted debate through form, reward and advantages."""

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations

from debate_protocol.parsing import Contract
from debate_protocol.types import (
    Ask,
    DebateRun,
    Gate,
    Question,
    Reply,
    Sent,
    Transcript,
    Turn,
    TurnKey,
)
from debate_rewards.reward import RewardConfig, RewardContext, read_debate, score_debates
from debate_rollout.rendering import TokenText
from debate_train.advantages import TurnAdvantages
from debate_train.batches.rows import stream_credit, turn_tokens
from debate_train.playing import named_debates
from debate_train.recipe import Recipe

Script = Callable[[Ask], Reply]
Taught = tuple[str, str]
"""A stream, and the component of a mixed reward that gives it values."""

_QUESTIONS, _COPIES, _AGENTS, _ROUNDS, _ROLLOUTS = 2, 4, 8, 4, 2
_TURNS = 512
"""Most turns of a step that is played; larger debates are not."""
_RIGHT, _WRONG = "7", ("8", "9")


def small_recipe(phase: Recipe) -> Recipe | None:
    """Return the phase with debates small enough to play, None where that is another debate."""
    debate, rollout = phase.debate, phase.rollout
    copies = {
        name: min(getattr(rollout, name), _COPIES)
        for name in ("debates_per_question", "direct_per_question")
    }
    try:
        debate = debate.at_most(_AGENTS, _ROUNDS, _ROLLOUTS)
    except ValueError:  # A topology that does not fit fewer agents.
        return None
    turns = debate.turn_count() * copies["debates_per_question"] * _questions(phase)
    if turns > _TURNS:
        return None
    rollout = rollout.model_copy(update={**copies, "other_forms": ()})
    return phase.model_copy(update={"debate": debate, "rollout": rollout})


def scripted_step(
    recipe: Recipe, number: int, *, answers: bool, failures: bool
) -> list[Transcript]:
    """Play the debates of one small step.

    Agents are right and wrong in a mixture, criticise everybody they were shown, and compare every
    pair that they may, more often right than wrong. No two steps are alike.

    Args:
        recipe: From `small_recipe`.
        number: Of the step.
        answers: Whether the questions have answers.
        failures: Whether some turns cannot be read.
    """
    count = min(recipe.data.batch_size, _questions(recipe))
    answer = _RIGHT if answers else None
    questions = [
        Question(f"q{i}", f"question {i}", answer, {"kind": "number"}) for i in range(count)
    ]
    return [
        hold(run, _Rich(recipe, f"{name}/{failures}", failures))
        for name, run in named_debates(recipe, questions, f"check/{number}")
    ]


def _questions(phase: Recipe) -> int:
    return max(_QUESTIONS, *(part.least_questions for part in phase.reward.parts().values()))


def hold(run: DebateRun, script: Script) -> Transcript:
    """Hold one debate; gates go on."""
    yielded = next(run)
    while True:
        sent: Sent = "go_on" if isinstance(yielded, Gate) else [script(ask) for ask in yielded]
        try:
            yielded = run.send(sent)
        except StopIteration as ended:
            transcript: Transcript = ended.value
            return transcript


def taught(recipe: Recipe, transcripts: Sequence[Transcript]) -> set[Taught]:
    """Return which streams of which components give any character a value that is not 0."""
    advantages = recipe.advantage(transcripts, score_debates(recipe.reward, transcripts))
    found: set[Taught] = set()
    for transcript, by_turn in zip(transcripts, advantages, strict=True):
        for turn in transcript.turns:
            found.update(_taught_by(recipe, transcript, turn, by_turn))
    return found


def _taught_by(
    recipe: Recipe, transcript: Transcript, turn: Turn, by_turn: TurnAdvantages
) -> Iterator[Taught]:
    own = by_turn.get(turn.key, [])
    tokens = None
    for component in dict.fromkeys(a.component for a in own if a.value != 0):
        if tokens is None:
            text = TokenText(turn.text, tuple(range(len(turn.text))))
            tokens = turn_tokens(transcript, turn, text)
        parts = [a for a in own if a.component == component]
        values, _ = stream_credit(tokens, parts, recipe.advantage.streams)
        for name, row in zip(recipe.advantage.streams, values, strict=True):
            if row.any():
                yield name, component


class _Rich:
    """Says all that a contract has room for, differently in every turn."""

    def __init__(self, recipe: Recipe, name: str, failures: bool) -> None:
        self._right: dict[TurnKey, bool] = {}
        self._name, self._failures = name, failures
        self._most = recipe.rollout.max_tokens

    def __call__(self, ask: Ask) -> Reply:
        chance = random.Random(f"{self._name}/{ask.seed}/{ask.agent}/{ask.round}")
        right = chance.random() < 0.5
        self._right[TurnKey(ask.agent, ask.round)] = right
        text = self._text(ask, right, chance)
        if self._failures and chance.random() < 0.3:
            text = "?"
        tokens = self._most if chance.random() < 0.3 else chance.randint(1, self._most)
        return Reply(text, token_ids=(0,) * tokens, logps=(0.0,) * tokens)

    def _text(self, ask: Ask, right: bool, chance: random.Random) -> str:
        answer = _RIGHT if right else chance.choice(_WRONG)
        contract = ask.contract
        if contract is None or contract.kind == "boxed":
            return f"so \\boxed{{{answer}}}"
        if contract.kind == "answer_line":
            return f"so\nAnswer: {answer}"
        return self._sections(contract, ask, answer, chance)

    def _sections(self, contract: Contract, ask: Ask, answer: str, chance: random.Random) -> str:
        latest = {
            key.agent: self._right.get(key, False) for key in sorted(ask.shown, key=_by_round)
        }
        said: dict[str, object] = {
            "evaluation": " ".join(
                f"Agent {agent} is {'right' if ok else 'wrong'}." for agent, ok in latest.items()
            ),
            "comparison": "\n".join(
                f"Agent {a} {_verdict(latest[a], latest[b], chance)} Agent {b}"
                for a, b in combinations(sorted(latest), 2)
            ),
            "consensus": "NO",
        }
        said[contract.answer_section or ""] = answer
        return "\n".join(
            f"<{name}>{said.get(name) or 'N/A'}</{name}>" for name in contract.sections
        )


def _by_round(key: TurnKey) -> tuple[int, int]:
    return key.round, key.agent


def _verdict(left: bool, right: bool, chance: random.Random) -> str:
    if left == right or chance.random() < 0.2:
        return chance.choice(">=<")
    return ">" if left else "<"


STEPS = 6
"""Scripted steps after which a value that never came is taken never to come."""


@dataclass(frozen=True, slots=True)
class Lessons:
    """What scripted debates of a phase taught.

    `given` are the streams that the reward has values for and that are trained, by component;
    `taught` those of them in which some token had an advantage, `from_failures` those in which
    one had where turns failed. `asked` says whether anybody was shown two others, and so is asked
    to compare them, `compares` whether the contract has room for it, `answers` whether the
    questions have any.
    """

    given: tuple[Taught, ...]
    taught: frozenset[Taught]
    from_failures: frozenset[Taught]
    asked: bool
    compares: bool
    answers: bool

    @property
    def teaches_nothing(self) -> bool:
        """Whether no value reached any token, other than from failed turns."""
        return not self.taught.intersection(self.given)


def lessons_of(phase: Recipe, *, answers: bool = True) -> Lessons | None:
    """Play scripted debates of a phase.

    Args:
        phase: The phase.
        answers: Whether its questions have answers.

    Returns:
        None where that says nothing: nothing is trained or nothing is sampled, the reward is of
        another package, or the debate is too large to play.
    """
    small = small_recipe(phase)
    parts = phase.reward.parts().values()
    if small is None or phase.loss.supervised or not all(part.can_be_tried for part in parts):
        return None
    given = tuple(_given(phase))
    found: dict[bool, set[Taught]] = {False: set(), True: set()}
    played: list[Transcript] = []
    with _quiet():
        for failures, taught_so_far in found.items():
            for number in range(STEPS):
                if taught_so_far.issuperset(given) or (failures and found[False].issuperset(given)):
                    break
                step = scripted_step(small, number, answers=answers, failures=failures)
                taught_so_far |= taught(small, step)
                played += step
    asked, compares = _asked(played)
    return Lessons(given, frozenset(found[False]), frozenset(found[True]), asked, compares, answers)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep rewards from naming the questions of the script that they leave out."""
    logger = logging.getLogger("debate_rewards")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def learning_warnings(phase: Recipe, lessons: Lessons) -> Iterator[str]:
    """Yield one sentence for each value of the reward that never reaches a token, with a reason."""
    if not lessons.given:
        if any(stream in phase.advantage.streams for stream in phase.reward.streams):
            yield (
                "nothing is learned: every stream that the reward has values for has weight 0; "
                "expected a weight in advantage.streams, or in reward.components"
            )
        return
    parts = phase.reward.parts()
    dead = [one for one in lessons.given if one not in lessons.taught]
    reasons = {one: _reason(phase, parts, one, lessons) for one in dead}
    if lessons.teaches_nothing:
        only = "only failed turns teach anything" if lessons.from_failures else "nothing is learned"
        for reason in dict.fromkeys(reasons.values()):
            yield f"{only}: {reason}"
        return
    said = {part.few_judges(use_of(phase)) for part in parts.values()}  # Warned of by themselves.
    for component, reason in dict.fromkeys((c, reasons[s, c]) for s, c in dead):
        streams = " and ".join(s for s, c in dead if c == component and reasons[s, c] == reason)
        where = f"reward.components.{component}" if component else "reward"
        if reason not in said:
            yield f"{where}: no value of stream {streams} reaches a token: {reason}"


def truth_errors(phase: Recipe, *, answers: bool) -> Iterator[str]:
    """Yield an error where the phase learns from answers alone, and its questions have none."""
    parts = phase.reward.parts().values()
    without = [_without_answers(part) for part in parts]
    if not answers and without[0] is not None and all(without):
        yield without[0]


def use_of(phase: Recipe) -> RewardContext:
    """Return what a phase uses its reward on."""
    judge = phase.advantage.streams.get("judge")
    return RewardContext(
        rules=phase.debate.protocol(),
        questions=phase.data.batch_size,
        max_tokens=phase.rollout.max_tokens,
        judge_weight=0.0 if judge is None else judge.weight,
        baseline=phase.advantage.baseline_of("generator"),
    )


def _given(phase: Recipe) -> Iterator[Taught]:
    """Yield the trained streams that have values, with the component that gives these."""
    reward, streams = phase.reward, phase.advantage.streams
    weights = reward.part_weights()
    seen: set[Taught] = set()
    for name, part in reward.parts().items():
        for stream in part.streams if weights[name] != 0 else ():
            one = (stream, name if reward.adds_advantages else "")
            trained = stream in streams and streams[stream].weight != 0
            if trained and one not in seen:
                seen.add(one)
                yield one


def _asked(transcripts: Sequence[Transcript]) -> tuple[bool, bool]:
    debates = [read_debate(transcript) for transcript in transcripts]
    asked = any(debate.expected_pairs(turn) for debate in debates for turn in debate.turns.values())
    return asked, any(debate.compares for debate in debates)


def _reason(
    phase: Recipe,
    parts: Mapping[str, RewardConfig],
    one: Taught,
    lessons: Lessons,
) -> str:
    """Return why a stream has no value: the first of the causes that are known."""
    stream, component = one
    found = [p for name, p in parts.items() if component in ("", name)]
    rewards = [p for p in found if stream in p.streams]
    for reward in rewards:
        reason = (
            (None if lessons.answers else _without_answers(reward))
            or _without_votes(phase, reward, lessons)
            or reward.why_no_signal(stream, use_of(phase))
        )
        if reason is not None:
            return reason
    return _levelled(phase, stream)


def _without_answers(reward: RewardConfig) -> str | None:
    if "answers" not in reward.needed():
        return None
    return (
        f"{reward.type} compares with the questions' own answers, and no training question has "
        "one; expected data.fields.answer to name a key that rows have, or another reward"
    )


def _without_votes(phase: Recipe, reward: RewardConfig, lessons: Lessons) -> str | None:
    if "votes" not in reward.needed():
        return None
    if not lessons.compares:
        return (
            f"{reward.type} counts comparisons, and contract {phase.debate.contract_rules()} has "
            "no comparison section; expected three_section, five_section, or a contract of your "
            "own with that section"
        )
    if not lessons.asked:
        return (
            f"{reward.type} counts comparisons, and nobody is shown two other agents to compare: "
            f"{_why_unseen(phase)}"
        )
    return None


def _why_unseen(phase: Recipe) -> str:
    debate, rules = phase.debate, phase.debate.protocol()
    if debate.num_agents < 3:
        return (
            f"found debate.num_agents {debate.num_agents}; expected at least 3 agents, as nobody "
            "judges themselves"
        )
    if rules.schedule == "parallel" and debate.max_rounds == 1:
        return (
            "found one parallel round, in which all speak at once; expected debate.max_rounds "
            "above 1, or debate.type: sequential"
        )
    if rules.history_rounds == 0 and rules.schedule == "parallel":
        return (
            "found debate.history_rounds 0, which shows no earlier round; expected -1, or the "
            "number of rounds to show"
        )
    return (
        f"found debate.topology {rules.topology} with {debate.num_agents} agents and degree "
        f"{rules.degree or 'none'}; expected all, or a degree of at least 2"
    )


def _levelled(phase: Recipe, stream: str) -> str:
    own = phase.advantage.streams[stream]
    baseline = phase.advantage.baseline_of(stream)
    sections = phase.debate.contract_rules().sections
    if sections and not any(own.section_weight(stream, section) for section in sections):
        return (
            f"advantage.streams.{stream}.sections: found none that is a section of contract "
            f"{phase.debate.contract_rules()}; expected some of {', '.join(sections)}"
        )
    if phase.debate.turn_count() == 1 and baseline != "none":
        return (
            "advantage.baseline: a direct reply is alone in its group, so every advantage is 0; "
            "expected baseline: question_round with rollout.debates_per_question above 1, or batch"
        )
    return (
        f"advantage.baseline: found {baseline}, under which every value is alone in its group, or "
        "like all others there; expected another baseline, or more rollout.debates_per_question"
    )
