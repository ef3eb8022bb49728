"""Examples by the final answers of debates: pairs of answers, and replies to imitate."""

import random
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
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
"""How an answer is chosen: as the most common one of the round, as the first by the agents' votes,
or as the question's right one."""
Round = Literal["first", "last", "every"]


LONE_DEBATE = "lone_debate"
"""Key of a turn's `extra`: the debate in which it was the only turn of the only agent."""


@dataclass(frozen=True, slots=True)
class ChosenRejected:
    """The replies of a round, with the chosen answer and with others."""

    debate: ReadDebate
    chosen: list[ReadTurn]
    others: list[ReadTurn]


@dataclass(frozen=True, slots=True)
class _Round:
    """The readable replies of a round, with the texts of their answers."""

    debate: ReadDebate
    turns: list[ReadTurn]
    answers: list[str | None]


def joined(transcripts: Sequence[Transcript]) -> list[Transcript]:
    """Join lone replies to one prompt: one round of agents who read nobody.

    Rollouts of other programs, and debates of form `direct`, are lone replies, and a lone reply has
    neither a majority nor another reply to be compared with.
    """
    groups: dict[Hashable, list[Transcript]] = {}
    for number, transcript in enumerate(transcripts):
        key: Hashable = number
        is_lone = transcript.protocol.num_agents == len(transcript.turns) == 1
        if is_lone and transcript.turns[0].prompt:
            prompt = transcript.turns[0].prompt
            messages = tuple((message["role"], message["content"]) for message in prompt)
            question = transcript.question
            key = (question.text, question.answer, transcript.protocol.contract, messages)
        groups.setdefault(key, []).append(transcript)
    return [_as_one_round(group) for group in groups.values()]


def _as_one_round(replies: Sequence[Transcript]) -> Transcript:
    first = replies[0]
    if len(replies) == 1:
        return first
    turns = []
    for agent, transcript in enumerate(replies):
        turn = transcript.turns[0]
        turns.append(replace(turn, agent=agent, extra={**turn.extra, LONE_DEBATE: transcript.id}))
    roles = tuple(replace(role, count=len(replies)) for role in first.protocol.roles)
    protocol = replace(first.protocol, num_agents=len(replies), roles=roles)
    return replace(first, protocol=protocol, turns=tuple(turns))


def decided(
    transcripts: Sequence[Transcript],
    by: By | Literal["any"],
    round: Round,
    example_set: ExampleSet,
) -> Iterator[tuple[Transcript, ChosenRejected]]:
    """Yield the rounds with a chosen answer, with both sides; count the other rounds.

    A round has no chosen answer if the question's gold answer is unusable, if the most common
    answers tie, or if the votes tie. `any` chooses every readable reply.
    """
    rounds: list[_Round] = []
    for transcript in transcripts:
        rounds += _select_rounds(read_debate(transcript), round)
    chosen_of_rounds: Sequence[list[bool] | None]
    if by == "any":
        chosen_of_rounds = [[True] * len(each.turns) for each in rounds]
    elif by == "answer":
        chosen_of_rounds = _choose_right(rounds)
    elif by == "majority":
        chosen_of_rounds = [_choose_majority(each) for each in rounds]
    else:
        chosen_of_rounds = [_choose_by_votes(each) for each in rounds]
    for each, is_chosen in zip(rounds, chosen_of_rounds, strict=True):
        if not each.turns:
            example_set.leave_out("no_readable_reply")
            continue
        if is_chosen is None:
            example_set.leave_out("no_decision")
            continue
        chosen = []
        others = []
        for turn, turn_is_chosen in zip(each.turns, is_chosen, strict=True):
            if turn_is_chosen:
                chosen.append(turn)
            else:
                others.append(turn)
        yield (
            each.debate.transcript,
            ChosenRejected(debate=each.debate, chosen=chosen, others=others),
        )


def _select_rounds(debate: ReadDebate, round: Round) -> list[_Round]:
    turns = [turn for turn in debate.turns.values() if not turn.failed]
    numbers = sorted({turn.key.round for turn in turns})
    selected = {"first": numbers[:1], "last": numbers[-1:], "every": numbers}[round]
    rounds = []
    for number in selected:
        round_turns = [turn for turn in turns if turn.key.round == number]
        answers = [answer_text(debate, turn) for turn in round_turns]
        rounds.append(_Round(debate=debate, turns=round_turns, answers=answers))
    # A debate without a readable reply still has a round, which counts as left out.
    return rounds or [_Round(debate=debate, turns=[], answers=[])]


def _choose_majority(round: _Round) -> list[bool] | None:
    classes = answer_classes(round.debate.transcript.question, round.answers)
    counts = Counter(number for number in classes if number is not None)
    largest = counts.most_common(2)
    if not largest:
        return None
    majority, size = largest[0]
    is_tied = len(largest) == 2 and largest[1][1] == size
    if is_tied:
        return None
    return [number == majority for number in classes]


def _choose_by_votes(round: _Round) -> list[bool] | None:
    debate = round.debate
    ranked = standings(debate)
    best = max((standing for _, standing in ranked), default=0.0)
    winning_answers = []
    for turn, standing in ranked:
        if standing == best:
            winning_answers.append(answer_text(debate, turn))
    # One call for both, so that equal answers are in one class whatever their wording.
    classes = answer_classes(debate.transcript.question, [*round.answers, *winning_answers])
    winners = set(classes[len(round.answers) :])
    if len(winners) != 1 or None in winners:
        return None
    return [number in winners for number in classes[: len(round.answers)]]


def _choose_right(rounds: Sequence[_Round]) -> list[list[bool] | None]:
    # All answers in one call: the processes that check them work side by side.
    to_check = []
    for each in rounds:
        question = each.debate.transcript.question
        to_check += [(question, answer) for answer in each.answers]
    verdicts = iter(check_many(to_check))
    chosen: list[list[bool] | None] = []
    for each in rounds:
        round_verdicts = [next(verdicts).verdict for _ in each.answers]
        if "unverifiable" in round_verdicts:
            chosen.append(None)
        else:
            chosen.append([verdict == "right" for verdict in round_verdicts])
    return chosen


class AnswerPairs(OfflineSettings):
    """Pairs of a reply with the chosen answer over a reply of the same round with another.

    Each reply with another answer is rejected in a pair, and chosen replies take turns.
    The prompt is the chosen reply's. Debates without both kinds have no pair. Lone replies to one
    prompt are one round.

    Source: `by: majority` is the preference data of multi-agent consensus alignment (MACA, arXiv
    2509.15172), without gold answers.
    """

    teaches: ClassVar[Teaches] = "pairs"

    type: Literal["answer_pairs"] = "answer_pairs"
    by: By = "majority"
    """Which answer is chosen: the right one, the majority's, or what agents voted for."""
    round: Round = "last"
    """The round whose replies are compared; in the first one all prompts are alike."""

    def take(self, transcripts: Sequence[Transcript]) -> ExampleSet:
        """Select the pairs of debates."""
        example_set = ExampleSet()
        pairs: list[Pair] = []
        debates = joined(transcripts)
        for transcript, replies in decided(debates, self.by, self.round, example_set):
            if not replies.chosen or not replies.others:
                example_set.leave_out("all_agree" if replies.chosen else "none_chosen")
                continue
            for number, rejected in enumerate(replies.others):
                chosen = replies.chosen[number % len(replies.chosen)]
                example = _build_example(transcript, chosen.turn, rejected.turn)
                if example is None:
                    example_set.leave_out("same_reply")
                    continue
                pair = Pair(
                    transcript=transcript,
                    chosen=chosen.turn,
                    rejected=rejected.turn,
                    example=example,
                )
                pairs.append(pair)
        for pair in composed(pairs):
            example_set.keep(pair.example, self.by)
        return example_set


class ChosenReplies(OfflineSettings):
    """Replies with the chosen answer, to be imitated: rejection sampling, and distillation.

    `learned_as: reply` imitates a reply under the original prompt. `learned_as: first_turn`
    imitates the answer of a debate as if given at once, under the prompt of a first turn: a single
    model then answers as the debate did. `weight: votes` weighs a reply by the share of won votes
    (`=` is half a vote); unjudged replies, such as a last parallel round, and replies without a won
    vote are left out.

    Source: `by: answer`, `round: first` is fine-tuning on right answers, the baseline SFT of
    ACC-Debate; `by: majority`, `learned_as: first_turn` follows DebateGPT (Subramaniam et al.
    2024), without summaries.
    """

    teaches: ClassVar[Teaches] = "demonstrations"

    type: Literal["chosen_replies"] = "chosen_replies"
    by: By | Literal["any"] = "answer"
    """Which answer is chosen: the right one, the majority's, the votes', or any."""
    round: Round = "last"
    """Rounds whose replies are used: the first, the last, or every one."""
    learned_as: Literal["reply", "first_turn"] = "reply"
    """Imitated as the reply that it was, or as a first answer to the question alone."""
    replies_per_debate: int | None = Field(None, ge=1)
    """Most replies of one round of a debate; None is all."""
    replies_per_question: int | None = Field(None, ge=1)
    """Most replies to one question, drawn from those of all its debates; None is all."""
    weight: Literal["equal", "votes"] = "equal"
    """Weight of a reply in the loss."""

    def problem(self, form: DebateForm) -> str | None:
        """Refuse first turns of sequential debates."""
        if self.learned_as == "first_turn" and form.protocol().schedule == "sequential":
            return (
                "learned_as: found first_turn with a sequential debate, in which later agents "
                "have read others when they first speak; expected reply, or debate.type: "
                "simultaneous"
            )
        return None

    def take(self, transcripts: Sequence[Transcript]) -> ExampleSet:
        """Select the chosen replies of debates."""
        example_set = ExampleSet()
        examples: list[Example] = []
        debates = joined(transcripts) if self.by == "majority" else transcripts
        for transcript, replies in decided(debates, self.by, self.round, example_set):
            example_set.leave_out("other_answer", len(replies.others))
            vote_shares: dict[TurnKey, float] | None = None
            if self.weight == "votes":
                vote_shares = {}
                for key, votes in tally(all_votes(ballots(replies.debate))).items():
                    vote_shares[key] = votes.up / (votes.up + votes.down)
            for turn in replies.chosen[: self.replies_per_debate]:
                weight = 1.0 if vote_shares is None else vote_shares.get(turn.key)
                if not weight:
                    example_set.leave_out("no_votes" if weight is None else "no_vote_won")
                    continue
                example = _build_example(transcript, turn.turn)
                if example is None:
                    example_set.leave_out("no_tokens")
                    continue
                example = replace(example, weight=weight)
                if self.learned_as == "first_turn":
                    example = _as_first_turn(replies.debate, turn, example)
                if example is None:
                    example_set.leave_out("no_first_turn")
                else:
                    examples.append(example)
        for example in self._limit_per_question(examples, example_set):
            example_set.keep(example, self.by)
        return example_set

    def _limit_per_question(
        self, examples: Sequence[Example], example_set: ExampleSet
    ) -> Sequence[Example]:
        limit = self.replies_per_question
        if limit is None:
            return examples
        indices_of_question: dict[object, list[int]] = {}
        for index, example in enumerate(examples):
            indices_of_question.setdefault(example.meta["question"], []).append(index)
        selected: set[int] = set()
        for question, indices in indices_of_question.items():
            # Seeded by the question, so that the draw does not depend on other questions.
            generator = random.Random(f"replies/{question}")
            selected |= set(generator.sample(indices, min(limit, len(indices))))
        if len(selected) < len(examples):
            example_set.leave_out("more_than_wanted", len(examples) - len(selected))
        return [example for index, example in enumerate(examples) if index in selected]


class EveryReply(OfflineSettings):
    """All replies of debates, also guided replies, each under the original prompt.

    For demonstrated debates: before a model can be guided, it must learn to answer guiding
    prompts.
    """

    teaches: ClassVar[Teaches] = "demonstrations"

    type: Literal["every_reply"] = "every_reply"
    wrong: Literal["keep", "leave_out"] = "keep"
    """`leave_out` takes no natural reply that gives a wrong answer, an actor's or a critic's:
    others still read and check it. Guided ones are taken whatever they were guided to."""

    def take(self, transcripts: Sequence[Transcript]) -> ExampleSet:
        """Select the replies of debates."""
        example_set = ExampleSet()
        for transcript in transcripts:
            wrong_turns: set[TurnKey] = set()
            if self.wrong == "leave_out":
                wrong_turns = _wrong_turns(transcript)
            for turn in transcript.turns:
                if turn.key in wrong_turns:
                    example_set.leave_out("wrong_answer")
                else:
                    self._keep_reply(transcript, turn, "natural", example_set)
                for branch in turn.branches:
                    self._keep_reply(transcript, branch.turn, "guided", example_set)
        return example_set

    def _keep_reply(
        self, transcript: Transcript, turn: Turn, kind: str, example_set: ExampleSet
    ) -> None:
        example = _build_example(transcript, turn)
        if example is None:
            example_set.leave_out("no_tokens")
        else:
            example_set.keep(example, kind)


def _wrong_turns(transcript: Transcript) -> set[TurnKey]:
    """Find the turns with a wrong answer; a turn without an answer is not wrong."""
    answers: dict[TurnKey, str] = {}
    for turn in transcript.turns:
        answer = parse_turn(transcript, turn).answer
        if answer is not None:
            answers[turn.key] = answer
    checks = check_many([(transcript.question, answer) for answer in answers.values()])
    return {key for key, check in zip(answers, checks, strict=True) if check.verdict == "wrong"}


def _build_example(
    transcript: Transcript, chosen: Turn, rejected: Turn | None = None
) -> Example | None:
    # An empty reply would teach the model to end at once.
    if chosen.reply is None or not chosen.text.strip():
        return None
    if rejected is not None and rejected.reply is None:
        return None
    rejected_reply = None if rejected is None else rejected.reply
    example = example_of(transcript, chosen, chosen.reply, rejected_reply)
    if example is None or LONE_DEBATE not in chosen.extra:
        return example
    meta = {**example.meta, "debate": chosen.extra[LONE_DEBATE]}
    return replace(example, agent=0, meta=meta)


def _as_first_turn(debate: ReadDebate, turn: ReadTurn, example: Example) -> Example | None:
    """Rewrite a reply as if the agent had answered so in the first turn.

    The agent's first turn keeps the form; the reply's answer section replaces the first answer
    section. `None` if the first turn failed, or had read others.
    """
    protocol = debate.transcript.protocol
    # In a sequential debate, later agents have read others before their first turn.
    if protocol.schedule == "sequential":
        return None
    rounds = [key.round for key in debate.turns if key.agent == turn.key.agent]
    first = debate.turns[TurnKey(turn.key.agent, min(rounds))]
    first_reply = first.turn.reply
    if first_reply is None or first.failed:
        return None
    if first.key == turn.key:
        return example
    section = get_contract(protocol.contract).answer_section
    text = turn.turn.text
    if section is not None:
        start, end = first.parsed.sections[section].span
        first_text = first.turn.text
        answer = turn.parsed.sections[section].text
        text = first_text[:start] + answer + first_text[end:]
    return replace(
        example,
        prompt=first.turn.prompt or (),
        prompt_ids=first_reply.prompt_ids,
        # No engine sampled this text; its ids are encoded before training.
        chosen=Completion(text=text, token_ids=()),
        meta={**example.meta, "learned_as": "first_turn"},
    )
