"""Whether each question's own answer counts as right when a response gives it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from debate_protocol.parsing.contract import ContractKind
from debate_protocol.types import Question
from debate_rewards.answers.checking import Verdict, check_many
from debate_train.data.source import DataSource, Split

_MOST = 20_000
"""Questions of a split that are checked; puzzles that are made as needed end at fewer."""
_SPLITS: tuple[Split, ...] = ("train", "dev", "test")


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """A question of a split, and what the checker says of its own answer."""

    split: Split
    question: Question
    verdict: Verdict

    @property
    def is_right(self) -> bool:
        """Whether the answer counts as right."""
        return self.verdict.verdict == "right"

    def __str__(self) -> str:
        question, verdict = self.question, self.verdict
        kind = question.meta.get("kind", "math")
        return (
            f"{self.split}: question {question.id}: its own answer {question.answer!r:.80} "
            f"({kind}) counts as {verdict.verdict} ({verdict.reason})"
        )


def judged_answers(source: DataSource, form: ContractKind) -> list[JudgedAnswer]:
    """Check the answer of every question of all splits, written as the contract asks for it.

    Args:
        source: Of the questions.
        form: In what a response marks its final answer.
    """
    asked = [
        (name, question)
        for name in _SPLITS
        for question in source.split(name, _MOST)
        if question.answer is not None
    ]
    verdicts = check_many([(q, answered(q, form)) for _, q in asked])
    pairs = zip(asked, verdicts, strict=True)
    return [JudgedAnswer(name, question, verdict) for (name, question), verdict in pairs]


def answered(question: Question, form: ContractKind) -> str:
    r"""Return a response that gives the question's own answer; braces of a text are escaped."""
    answer = str(question.answer)
    if form == "answer_line":
        return f"Answer: {answer}"
    if question.meta.get("kind") == "text":
        answer = answer.replace("{", r"\{").replace("}", r"\}")
    return f"\\boxed{{{answer}}}"


def said_of(judged: list[JudgedAnswer]) -> Iterator[str]:
    """Yield how many answers count as right, split by split, and then each that does not."""
    for name in _SPLITS:
        verdicts = Counter(one.verdict.verdict for one in judged if one.split == name)
        if count := verdicts.total():
            found = ", ".join(f"{verdicts[v]:,} {v}" for v in ("right", "wrong", "unverifiable"))
            yield f"{name}: {count:,} answers, checked against themselves: {found}"
    yield from (str(one) for one in judged if not one.is_right)
