"""Examples by the answers that debates came to: pairs of answers, and replies to imitate."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pydantic import Field

from debate_protocol.forms import DebateForm
from debate_protocol.parsing.contract import get_contract
from debate_protocol.roles import role_of
from debate_protocol.types import Transcript, Turn, TurnKey
from debate_rewards.answers.checking import answer_classes, check_many
from debate_rewards.reading import ReadDebate, ReadTurn, read_debate
from debate_rewards.votes.decisions import answer_text
from debate_train.offline.example import Completion, Example
from debate_train.offline.offline_set import OfflineSettings, Taken, Teaches

By = Literal["majority", "answer"]
"""What decides: the most common answer of the debate's last round, or the question's own."""
Round = Literal["first", "last"]


class AnswerPairs(OfflineSettings):
    """Pairs of a reply with the chosen answer over a reply of the same round with another.

    Each reply with the other answer is the rejected one of a pair; chosen ones are taken in turn.
    The prompt is that of the chosen reply. Debates without both have no pair.

    Source: `by: majority` is the preference data of multi-agent consensus alignment (MACA, arXiv
    2509.15172), which needs no truth.
    """

    teaches: ClassVar[Teaches] = "pairs"

    type: Literal["answer_pairs"] = "answer_pairs"
    by: By = "majority"
    round: Round = "last"
    """The round whose replies are compared; in the first one all prompts are alike."""

    def take(self, transcripts: Sequence[Transcript]) -> Taken:
        """Return the pairs of debates."""
        taken = Taken()
        for transcript, sides in _decided(transcripts, self.by, self.round, taken):
            better, worse = sides.chosen, sides.others
            if not better or not worse:
                taken.leave_out("all_agree" if better else "none_chosen")
                continue
            for number, rejected in enumerate(worse):
                chosen = better[number % len(better)]
                example = _example(transcript, chosen, rejected)
                if example is None:
                    taken.leave_out("same_reply")
                else:
                    taken.keep(example, self.by)
        return taken


class ChosenReplies(OfflineSettings):
    """Replies with the chosen answer, to be imitated: rejection sampling, and distillation.

    `learned_as: reply` imitates a reply in its own prompt. `learned_as: first_turn` imitates the
    answer of a debate as if it had been given at once, under the prompt of a first turn: a single
    model then answers as the debate did.

    Source: `by: answer`, `round: first` is fine-tuning on right answers, the baseline SFT of
    ACC-Debate; `by: majority`, `learned_as: first_turn` follows DebateGPT (Subramaniam et al.
    2024), without its summaries.
    """

    teaches: ClassVar[Teaches] = "demonstrations"

    type: Literal["chosen_replies"] = "chosen_replies"
    by: By = "answer"
    round: Round = "last"
    learned_as: Literal["reply", "first_turn"] = "reply"
    replies_per_debate: int | None = Field(None, ge=1)
    """Most replies of one debate; None takes all."""

    def problem(self, form: DebateForm) -> str | None:
        """Return why debates of this form give no examples, None where they may."""
        if self.learned_as == "first_turn" and form.protocol().schedule == "sequential":
            return (
                "learned_as: found first_turn with a sequential debate, in which later agents "
                "have read others when they first speak; expected reply, or debate.type: "
                "simultaneous"
            )
        return None

    def take(self, transcripts: Sequence[Transcript]) -> Taken:
        """Return the chosen replies of debates."""
        taken = Taken()
        for transcript, sides in _decided(transcripts, self.by, self.round, taken):
            taken.leave_out("other_answer", len(sides.others))
            for turn in sides.chosen[: self.replies_per_debate]:
                example = _example(transcript, turn, None)
                if example is not None and self.learned_as == "first_turn":
                    example = _as_first_turn(sides.debate, turn, example)
                if example is None:
                    taken.leave_out("no_first_turn")
                else:
                    taken.keep(example, self.by)
        return taken


class EveryReply(OfflineSettings):
    """All replies of debates, guided ones too, each under the prompt that it was given.

    It is made for debates that the data demonstrates: a model that is to be guided has to be shown
    first how it answers a prompt that guides.
    """

    teaches: ClassVar[Teaches] = "demonstrations"

    type: Literal["every_reply"] = "every_reply"

    def take(self, transcripts: Sequence[Transcript]) -> Taken:
        """Return the replies of debates."""
        taken = Taken()
        for transcript in transcripts:
            for turn in transcript.turns:
                for said in (turn, *(branch.turn for branch in turn.branches)):
                    example = _reply(transcript, said)
                    if example is None:
                        taken.leave_out("no_tokens")
                    else:
                        taken.keep(example, "natural" if said is turn else "guided")
        return taken


@dataclass(frozen=True, slots=True)
class _Sides:
    """The replies of one round with the chosen answer, and those with another."""

    debate: ReadDebate
    chosen: list[ReadTurn]
    others: list[ReadTurn]


def _decided(
    transcripts: Sequence[Transcript], by: By, round: Round, taken: Taken
) -> Iterator[tuple[Transcript, _Sides]]:
    """Yield the debates in which something is chosen, with their sides; count the others."""
    for transcript, sides in zip(transcripts, _sides(transcripts, by, round), strict=True):
        if sides is None:
            taken.leave_out("no_decision")
        else:
            yield transcript, sides


def _sides(transcripts: Sequence[Transcript], by: By, round: Round) -> list[_Sides | None]:
    """Return the two sides of each debate.

    None where nothing is chosen: the question has no usable answer, or no answer is the most
    common one.
    """
    read = [read_debate(transcript) for transcript in transcripts]
    compared = [_of_round(debate, round) for debate in read]
    answers = [
        [answer_text(debate, turn) for turn in turns]
        for debate, turns in zip(read, compared, strict=True)
    ]
    if by == "majority":
        votes = zip(transcripts, answers, strict=True)
        chosen = [_in_majority(transcript, found) for transcript, found in votes]
    else:
        chosen = _right(transcripts, answers)
    found: list[_Sides | None] = []
    for debate, turns, which in zip(read, compared, chosen, strict=True):
        if which is None:
            found.append(None)
            continue
        marked = list(zip(turns, which, strict=True))
        better = [turn for turn, is_chosen in marked if is_chosen]
        found.append(_Sides(debate, better, [turn for turn, is_chosen in marked if not is_chosen]))
    return found


def _of_round(debate: ReadDebate, round: Round) -> list[ReadTurn]:
    turns = [turn for turn in debate.turns.values() if not turn.failed]
    rounds = [turn.key.round for turn in turns]
    wanted = (min if round == "first" else max)(rounds, default=0)
    return [turn for turn in turns if turn.key.round == wanted]


def _in_majority(transcript: Transcript, answers: Sequence[str | None]) -> list[bool] | None:
    classes = answer_classes(transcript.question, answers)
    sizes = Counter(number for number in classes if number is not None).most_common(2)
    if not sizes or (len(sizes) == 2 and sizes[0][1] == sizes[1][1]):
        return None
    return [number == sizes[0][0] for number in classes]


def _right(
    transcripts: Sequence[Transcript], answers: Sequence[Sequence[str | None]]
) -> list[list[bool] | None]:
    asked = [(t.question, a) for t, found in zip(transcripts, answers, strict=True) for a in found]
    verdicts = iter(check_many(asked))
    judged = [[next(verdicts).verdict for _ in found] for found in answers]
    return [None if "unverifiable" in one else [v == "right" for v in one] for one in judged]


def _example(transcript: Transcript, chosen: ReadTurn, rejected: ReadTurn | None) -> Example | None:
    example = _reply(transcript, chosen.turn)
    if example is None or rejected is None:
        return example
    other = rejected.turn.reply
    if other is None or other.token_ids in ((), example.chosen.token_ids):
        return None
    return replace(example, rejected=Completion.of(other))


def _reply(transcript: Transcript, turn: Turn) -> Example | None:
    """Return a turn as an example to imitate, None where it has no tokens."""
    reply = turn.reply
    if reply is None or not reply.token_ids:
        return None
    role = role_of(transcript.protocol, turn.agent)
    meta = {
        "question": transcript.question.id,
        "debate": transcript.id,
        "role": role.name,
        "round": turn.round,
    }
    return Example(
        prompt=turn.prompt or (),
        prompt_ids=reply.prompt_ids,
        chosen=Completion.of(reply),
        agent=turn.agent,
        adapter=role.adapter,
        weight_version=reply.weight_version,
        meta=meta,
    )


def _as_first_turn(debate: ReadDebate, turn: ReadTurn, example: Example) -> Example | None:
    """Return the answer of a reply as its agent would have given it at once.

    The agent's own first turn keeps its form; its answer section becomes that of the reply. None
    where that turn failed.
    """
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
