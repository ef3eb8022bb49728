"""Examples by the answers that debates came to: pairs of answers, and replies to imitate."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pydantic import Field

from debate_protocol.forms import DebateForm
from debate_protocol.parsing import get_contract
from debate_protocol.types import Transcript, Turn, TurnKey, parse_turn
from debate_rewards.answer_checking import answer_classes, check_many
from debate_rewards.decisions import answer_text, standings
from debate_rewards.reward import ReadDebate, ReadTurn, read_debate
from debate_rewards.votes import all_votes, ballots, tally
from debate_train.offline.offline_set import (
    Completion,
    Example,
    ExampleSet,
    OfflineSettings,
    Pair,
    Teaches,
    composed,
    example_of,
)

By = Literal["majority", "votes", "answer"]
"""What decides: the most common answer of the round, the answer that the agents' votes put first,
or the question's own."""
Round = Literal["first", "last", "every"]


@dataclass(frozen=True, slots=True)
class ChosenRejected:
    """The replies of one round with the chosen answer, and those with another."""

    debate: ReadDebate
    chosen: list[ReadTurn]
    others: list[ReadTurn]


def decided(
    transcripts: Sequence[Transcript], by: By | Literal["any"], round: Round, taken: ExampleSet
) -> Iterator[tuple[Transcript, ChosenRejected]]:
    """Yield the rounds in which something is chosen, with their sides; count the others.

    Nothing is chosen where the question has no usable answer, where no answer is the most common
    one, or where none was voted above all others. `any` chooses every reply that can be read.
    """
    compared = [
        (debate, turns)
        for debate in map(read_debate, transcripts)
        for turns in _rounds(debate, round)
    ]
    answers = [[answer_text(debate, turn) for turn in turns] for debate, turns in compared]
    marks = _marks(compared, answers, by)
    for (debate, turns), which in zip(compared, marks, strict=True):
        if which is None:
            taken.leave_out("no_decision")
            continue
        marked = list(zip(turns, which, strict=True))
        better = [turn for turn, is_chosen in marked if is_chosen]
        others = [turn for turn, is_chosen in marked if not is_chosen]
        yield debate.transcript, ChosenRejected(debate, better, others)


def _rounds(debate: ReadDebate, round: Round) -> list[list[ReadTurn]]:
    """Return the readable replies of the rounds that are compared."""
    turns = [turn for turn in debate.turns.values() if not turn.failed]
    rounds = sorted({turn.key.round for turn in turns})
    wanted = {"first": rounds[:1], "last": rounds[-1:], "every": rounds}[round]
    found = [[turn for turn in turns if turn.key.round == number] for number in wanted]
    return found or [[]]


def _marks(
    compared: Sequence[tuple[ReadDebate, list[ReadTurn]]],
    answers: Sequence[Sequence[str | None]],
    by: By | Literal["any"],
) -> Sequence[list[bool] | None]:
    """Return which replies of each round are chosen, None where nothing is."""
    if by == "any":
        return [[True] * len(turns) for _, turns in compared]
    if by == "answer":
        return _right([debate.transcript for debate, _ in compared], answers)
    rule = _in_majority if by == "majority" else _voted_for
    return [rule(debate, found) for (debate, _), found in zip(compared, answers, strict=True)]


def _in_majority(debate: ReadDebate, answers: Sequence[str | None]) -> list[bool] | None:
    classes = answer_classes(debate.transcript.question, answers)
    sizes = Counter(number for number in classes if number is not None).most_common(2)
    if not sizes or (len(sizes) == 2 and sizes[0][1] == sizes[1][1]):
        return None
    return [number == sizes[0][0] for number in classes]


def _voted_for(debate: ReadDebate, answers: Sequence[str | None]) -> list[bool] | None:
    found = standings(debate)
    best = max((standing for _, standing in found), default=0.0)
    first = [answer_text(debate, turn) for turn, standing in found if standing == best]
    classes = answer_classes(debate.transcript.question, [*answers, *first])
    winners = set(classes[len(answers) :])
    if len(winners) != 1 or None in winners:
        return None
    return [number in winners for number in classes[: len(answers)]]


def _right(
    transcripts: Sequence[Transcript], answers: Sequence[Sequence[str | None]]
) -> list[list[bool] | None]:
    asked = [(t.question, a) for t, found in zip(transcripts, answers, strict=True) for a in found]
    verdicts = iter(check_many(asked))
    judged = [[next(verdicts).verdict for _ in found] for found in answers]
    return [None if "unverifiable" in one else [v == "right" for v in one] for one in judged]


class AnswerPairs(OfflineSettings):
    """Pairs of a reply with the chosen answer over a reply of the same round with another.

    Each reply with the other answer is the rejected one of a pair; chosen ones are taken in turn.
    The prompt is the chosen reply's own. Debates without both have no pair.

    Source: `by: majority` is the preference data of multi-agent consensus alignment (MACA, arXiv
    2509.15172), which needs no truth.
    """

    teaches: ClassVar[Teaches] = "pairs"

    type: Literal["answer_pairs"] = "answer_pairs"
    by: By = "majority"
    """Which answer is chosen: the right one, the majority's, or what agents voted for."""
    round: Round = "last"
    """The round whose replies are compared; in the first one all prompts are alike."""

    def take(self, transcripts: Sequence[Transcript]) -> ExampleSet:
        """Return the pairs of debates."""
        taken, pairs = ExampleSet(), list[Pair]()
        for transcript, sides in decided(transcripts, self.by, self.round, taken):
            better, worse = sides.chosen, sides.others
            if not better or not worse:
                taken.leave_out("all_agree" if better else "none_chosen")
                continue
            for number, rejected in enumerate(worse):
                chosen = better[number % len(better)]
                example = _example(transcript, chosen.turn, rejected.turn)
                if example is None:
                    taken.leave_out("same_reply")
                else:
                    pairs.append(Pair(transcript, chosen.turn, rejected.turn, example))
        for pair in composed(pairs):
            taken.keep(pair.example, self.by)
        return taken


class ChosenReplies(OfflineSettings):
    """Replies with the chosen answer, to be imitated: rejection sampling, and distillation.

    `learned_as: reply` imitates a reply in its own prompt. `learned_as: first_turn` imitates the
    answer of a debate as if it had been given at once, under the prompt of a first turn: a single
    model then answers as the debate did. `weight: votes` weighs a reply by the share of its votes
    that it won (`=` is half a vote); replies that nobody judged, as all of a last parallel round,
    and those that won none are left out.

    Source: `by: answer`, `round: first` is fine-tuning on right answers, the baseline SFT of
    ACC-Debate; `by: majority`, `learned_as: first_turn` follows DebateGPT (Subramaniam et al.
    2024), without its summaries.
    """

    teaches: ClassVar[Teaches] = "demonstrations"

    type: Literal["chosen_replies"] = "chosen_replies"
    by: By | Literal["any"] = "answer"
    """Which answer is chosen: the right one, the majority's, the votes', or any."""
    round: Round = "last"
    """Whose replies are taken: those of the first or last round, or of every one."""
    learned_as: Literal["reply", "first_turn"] = "reply"
    """Imitated as the reply that it was, or as a first answer to the question alone."""
    replies_per_debate: int | None = Field(None, ge=1)
    """Most replies of one round of a debate; None takes all."""
    replies_per_question: int | None = Field(None, ge=1)
    """Most replies to one question, drawn from those of all its debates; None takes all."""
    weight: Literal["equal", "votes"] = "equal"
    """What a reply counts for in the loss."""

    def problem(self, form: DebateForm) -> str | None:
        """Return why debates of this form give no examples, None where they may."""
        if self.learned_as == "first_turn" and form.protocol().schedule == "sequential":
            return (
                "learned_as: found first_turn with a sequential debate, in which later agents "
                "have read others when they first speak; expected reply, or debate.type: "
                "simultaneous"
            )
        return None

    def take(self, transcripts: Sequence[Transcript]) -> ExampleSet:
        """Return the chosen replies of debates."""
        taken, found = ExampleSet(), list[Example]()
        for transcript, sides in decided(transcripts, self.by, self.round, taken):
            taken.leave_out("other_answer", len(sides.others))
            shares = _shares(sides) if self.weight == "votes" else None
            for turn in sides.chosen[: self.replies_per_debate]:
                weight = 1.0 if shares is None else shares.get(turn.key)
                if not weight:
                    taken.leave_out("no_votes" if weight is None else "no_vote_won")
                    continue
                example = _example(transcript, turn.turn)
                if example is None:
                    taken.leave_out("no_tokens")
                    continue
                example = replace(example, weight=weight)
                if self.learned_as == "first_turn":
                    example = _as_first_turn(sides.debate, turn, example)
                if example is None:
                    taken.leave_out("no_first_turn")
                else:
                    found.append(example)
        for example in self._drawn(found, taken):
            taken.keep(example, self.by)
        return taken

    def _drawn(self, examples: Sequence[Example], taken: ExampleSet) -> Sequence[Example]:
        """Return at most as many examples of each question as are wanted, in their order."""
        most = self.replies_per_question
        if most is None:
            return examples
        places: dict[object, list[int]] = {}
        for place, example in enumerate(examples):
            places.setdefault(example.meta["question"], []).append(place)
        kept: set[int] = set()
        for question, own in places.items():
            kept |= set(random.Random(f"replies/{question}").sample(own, min(most, len(own))))
        if len(kept) < len(examples):
            taken.leave_out("more_than_wanted", len(examples) - len(kept))
        return [example for place, example in enumerate(examples) if place in kept]


class EveryReply(OfflineSettings):
    """All replies of debates, guided ones too, each under the prompt that it was given.

    It is made for debates that the data demonstrates: a model that is to be guided has to be shown
    first how it answers a prompt that guides.
    """

    teaches: ClassVar[Teaches] = "demonstrations"

    type: Literal["every_reply"] = "every_reply"
    wrong: Literal["keep", "leave_out"] = "keep"
    """`leave_out` takes no natural reply that gives a wrong answer, an actor's or a critic's:
    others still read and check it. Guided ones are taken whatever they were guided to."""

    def take(self, transcripts: Sequence[Transcript]) -> ExampleSet:
        """Return the replies of debates."""
        taken = ExampleSet()
        for transcript in transcripts:
            wrong = _wrong(transcript) if self.wrong == "leave_out" else ()
            for turn in transcript.turns:
                for said in (turn, *(branch.turn for branch in turn.branches)):
                    if said.key in wrong and said is turn:
                        taken.leave_out("wrong_answer")
                        continue
                    example = _example(transcript, said)
                    if example is None:
                        taken.leave_out("no_tokens")
                    else:
                        taken.keep(example, "natural" if said is turn else "guided")
        return taken


def _wrong(transcript: Transcript) -> set[TurnKey]:
    """Return the turns that give a wrong answer; one without an answer is not wrong."""
    given = {turn.key: parse_turn(transcript, turn).answer for turn in transcript.turns}
    answers = {key: answer for key, answer in given.items() if answer is not None}
    verdicts = check_many([(transcript.question, answer) for answer in answers.values()])
    return {key for key, one in zip(answers, verdicts, strict=True) if one.verdict == "wrong"}


def _shares(sides: ChosenRejected) -> dict[TurnKey, float]:
    """Return the share of its votes that each judged turn of a debate won."""
    shares = tally(all_votes(ballots(sides.debate)))
    return {key: share.up / (share.up + share.down) for key, share in shares.items()}


def _example(transcript: Transcript, chosen: Turn, rejected: Turn | None = None) -> Example | None:
    other = None if rejected is None else rejected.reply
    if chosen.reply is None or not chosen.text.strip() or (rejected is not None and other is None):
        return None
    return example_of(transcript, chosen, chosen.reply, other)


def _as_first_turn(debate: ReadDebate, turn: ReadTurn, example: Example) -> Example | None:
    """Return the answer of a reply as its agent would have given it at once.

    The agent's own first turn keeps its form; its answer section becomes that of the reply. None
    where that turn failed, or had read others.
    """
    if debate.transcript.protocol.schedule == "sequential":
        return None
    rounds = [key.round for key in debate.turns if key.agent == turn.key.agent]
    first = debate.turns[TurnKey(turn.key.agent, min(rounds))]
    asked = first.turn.reply
    if asked is None or first.failed:
        return None
    if first.key == turn.key:
        return example
    section = get_contract(debate.transcript.protocol.contract).answer_section
    text = turn.turn.text
    if section is not None:
        start, end = first.parsed.sections[section].span
        before = first.turn.text
        text = before[:start] + turn.parsed.sections[section].text + before[end:]
    return replace(
        example,
        prompt=first.turn.prompt or (),
        prompt_ids=asked.prompt_ids,
        chosen=Completion(text, ()),
        meta={**example.meta, "learned_as": "first_turn"},
    )
