"""Scripted debates, and what rewards and rows make of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from debate_protocol import DebateForm, Question, Transcript, TurnRequest
from debate_protocol.types import TurnKey
from debate_rewards import RewardConfig, Score
from debate_rewards.reward import score_debates
from debate_rollout.drivers import play
from debate_rollout.engines import ScriptedEngine
from debate_train.advantages import Grouped
from debate_train.batches.row_types import Batch
from debate_train.batches.rows import build_batch, reply_text, turn_tokens
from debate_train.models import ScratchModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

QUESTION = Question("product", "What is 6 * 7?", answer="42")

Script = Callable[[TurnRequest], str]


@dataclass(frozen=True)
class Lesson:
    """A debate whose replies hold their tokens, and the tokenizer of these."""

    debate: Transcript
    tokenizer: "PreTrainedTokenizerFast"

    def rows(self, reward: RewardConfig) -> tuple[Score, Batch]:
        """Return the score of the debate and its rows, as a training step makes them."""
        scores, advantage = score_debates(reward, [self.debate]), Grouped()
        found = advantage.compute([self.debate], scores, {})
        batch = build_batch([self.debate], found.turns, advantage.streams, self.tokenizer)
        return scores[0], batch

    def tokens(self, key: TurnKey, batch: Batch) -> list["Token"]:
        """Return the last token of a turn's prompt and those of the turn, with what they earn."""
        turn = next(turn for turn in self.debate.turns if turn.key == key)
        row = next(row for row in batch.rows if row.agent == key.agent)
        assert turn.reply is not None
        text, own = reply_text(turn.reply, self.tokenizer), row.segments == key.round + 1
        sections = ["prompt", *turn_tokens(self.debate, turn, text).sections]
        ends = [*text.starts[1:], len(text.text)]
        pieces = [text.text[start:end] for start, end in zip(text.starts, ends, strict=True)]
        first, last = row.sampled_positions[own][0] - 1, row.sampled_positions[own][-1]
        mask, advantages, credits = (
            row.over_tokens(name)[..., first : last + 1].tolist()
            for name in ("mask", "advantages", "credits")
        )
        by_stream = [
            dict(zip(batch.streams, each, strict=True)) for each in zip(*credits, strict=True)
        ]
        columns = (["…", *pieces], [-1, *text.starts], sections, mask, advantages, by_stream)
        return [Token(*one) for one in zip(*columns, strict=True)]


@dataclass(frozen=True)
class Token:
    """A token of a turn: its text, where that begins, and what it earns, in all and by stream.

    One of a prompt is nowhere in the text of the turn.
    """

    text: str
    start: int
    section: str
    mask: float
    advantage: float
    by_stream: Mapping[str, float]

    @property
    def shown(self) -> str:
        """The text as it is drawn."""
        return self.text.replace("\n", "⏎").strip(" ")


def held(form: DebateForm, script: Script, question: Question = QUESTION) -> Transcript:
    """Return a debate in which agents say what the script says, without tokens."""
    engine = ScriptedEngine().open(script=script)
    return play([form.start(question, seed=0)], engine, max_tokens=1000)[0]


def lesson(form: DebateForm, script: Script, phrases: Sequence[str] = ()) -> Lesson:
    """Return such a debate in tokens, one for each word; phrases are one token each, too."""
    said: list[str] = []

    def overheard(request: TurnRequest) -> str:
        said.extend(message["content"] for message in request.messages)
        said.append(script(request))
        return said[-1]

    held(form, overheard)
    known = {token[1:] for token in ScratchModel().load_tokenizer().get_vocab()}
    words = sorted({word for text in said for word in text.split()} - known)
    tokenizer = ScratchModel(extra_words=(*words, *phrases)).load_tokenizer()
    engine = ScriptedEngine().open(None, tokenizer, script=script)
    (debate,) = play([form.start(QUESTION, seed=0)], engine, max_tokens=1000)
    return Lesson(debate, tokenizer)


def value_of(score: Score, key: TurnKey, stream: str) -> float | None:
    """Return what a turn as a whole is worth in a stream; None is no signal."""
    return next(
        c.value
        for c in score.credits
        if (c.agent, c.round) == key and c.stream == stream and c.span is None
    )
