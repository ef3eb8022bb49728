"""Examples of a phase as rows, in order; those held out, read from files or imitated."""

import hashlib
import random
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from debate_protocol.types import Ask, Branch, Reply, Transcript, Turn
from debate_report.rollout_files import debates_in, files_of
from debate_rewards.estimates import bootstrap_interval
from debate_rewards.reward import read_debate
from debate_rollout.rendering import Renderer
from debate_train.batches.row_types import Batch, Row
from debate_train.batches.rows import Step
from debate_train.data.source import MOST_HELD_OUT, DataSource, Split, identity, normalised
from debate_train.interrupts import UsageError
from debate_train.offline.offline_set import Completion, Example, OfflineSettings

__all__ = ["example_batch"]


STREAM = "generator"
"""The stream that all tokens of examples are in."""


def example_batch(examples: Sequence[Example], seed: int) -> Batch:
    """Return the rows of a step.

    Args:
        examples: All with token ids; the chosen reply of a pair has advantage 1, the rejected one
            −1, and a reply that is imitated its weight.
        seed: Of the batch.
    """
    rows: list[Row] = []
    for number, example in enumerate(examples):
        is_pair = example.rejected is not None
        pair = number if is_pair else -1
        rows.append(_row(example, example.chosen, example.weight, number, pair))
        if example.rejected is not None:
            rows.append(_row(example, example.rejected, -1.0, number, pair))
    sampled = sum(len(row.sampled_positions) for row in rows)
    return Batch(tuple(rows), (STREAM,), sampled, len(rows), seed)


def _row(example: Example, said: Completion, advantage: float, number: int, pair: int) -> Row:
    shown, length = len(example.prompt_ids), len(said.token_ids)
    advantages = np.full(length, advantage, np.float32)
    return Row(
        tokens=np.array([*example.prompt_ids, *said.token_ids], np.int32),
        sampled_positions=np.arange(shown, shown + length, dtype=np.int32),
        advantages=advantages,
        sampler_logps=np.zeros(length, np.float32),
        temperatures=np.ones(length, np.float32),
        streams=np.ones(length, np.int64),
        versions=np.full(length, example.weight_version, np.int32),
        segments=np.ones(length, np.int16),
        agent=example.agent,
        debate=number,
        group=number,
        adapter=example.adapter,
        pair=pair,
        credits=None if example.rejected is not None else advantages[None, :],
    )


def lengths(examples: Sequence[Example]) -> dict[str, float]:
    """Return the mean length in tokens of what is chosen, and of what is rejected."""
    chosen = [len(one.chosen.token_ids) for one in examples]
    rejected = [len(one.rejected.token_ids) for one in examples if one.rejected is not None]
    found = {"chosen": chosen, "rejected": rejected}
    return {f"offline/{name}_tokens": float(np.mean(n)) for name, n in found.items() if n}


@dataclass(slots=True)
class PhaseExamples:
    """The examples of a phase, and what was counted and measured while they were taken."""

    examples: list[Example]
    counts: Mapping[str, float] = field(default_factory=dict)
    held_out: list[Example] = field(default_factory=list)
    """Pairs of questions that are not learned from."""

    def step(self, number: int, place: int, size: int, run_seed: int) -> Step:
        """Return what a step learns from: the examples in a shuffled order, epoch after epoch.

        Args:
            number: The step's, over the whole run.
            place: The step's in its phase.
            size: Examples of a step.
            run_seed: The recipe's.
        """
        began = time.perf_counter()
        chosen: list[Example] = []
        while len(chosen) < min(size, len(self.examples)):
            epoch, index = divmod(place * size + len(chosen), len(self.examples))
            order = list(range(len(self.examples)))
            random.Random(f"examples/{run_seed}/{epoch}").shuffle(order)
            chosen += [self.examples[i] for i in order[index : index + size - len(chosen)]]
        seed = zlib.crc32(f"{run_seed}/minibatches/{number}".encode())
        metrics = {**self.counts, **lengths(chosen)}
        metrics["offline/epoch"] = (place + 1) * size / len(self.examples)
        # The set is made once, before the first step.
        made = self.counts.get("offline/sampled_tokens", 0.0) if place == 0 else 0.0
        metrics["env/all/sampled_tokens"] = made
        return Step(number, (), (), example_batch(chosen, seed), metrics, {}, began)


_NAMES = ("", "_low", "_high")


def parted(
    transcripts: Iterable[Transcript], share: float, seed: int
) -> tuple[list[Transcript], list[Transcript]]:
    """Return the debates to learn from, and those of questions that are held out.

    Which these are follows from the recipe's seed and the question's text alone: all phases of a
    run hold out the same questions.
    """
    parts: tuple[list[Transcript], list[Transcript]] = ([], [])
    for one in transcripts:
        place = zlib.crc32(f"{seed}/held_out/{one.question.text}".encode()) / 2**32
        parts[place < share].append(one)
    return parts


def held_out_accuracies(
    pairs: Sequence[Example], before: Sequence[float], after: Sequence[float]
) -> dict[str, float]:
    """Return how a phase has come to prefer on pairs that it did not learn from.

    `preference_accuracy` is the share of pairs whose chosen reply has gained more log-probability
    since the phase's start than the rejected one: those with a positive margin of implicit rewards,
    whatever β is. `likelihood_accuracy` is the share whose chosen reply is the likelier of the two,
    `likelihood_accuracy_before` the same at the phase's start. Each is a mean over questions of
    their pairs' mean, with a 95 % interval that resamples questions.

    Args:
        pairs: One or more.
        before: log p at the phase's start of each pair's chosen and rejected reply, in turn.
        after: The same at its end.
    """
    gains = [now - then for now, then in zip(after, before, strict=True)]
    parts = {
        "preference_accuracy": gains,
        "likelihood_accuracy": after,
        "likelihood_accuracy_before": before,
    }
    questions = [str(pair.meta.get("question", n)) for n, pair in enumerate(pairs)]
    found = {"pairs": float(len(pairs)), "questions": float(len(set(questions)))}
    for name, values in parts.items():
        by_question: dict[str, list[bool]] = {}
        for n, question in enumerate(questions):
            by_question.setdefault(question, []).append(values[2 * n] > values[2 * n + 1])
        means = [sum(hits) / len(hits) for hits in by_question.values()]
        interval = bootstrap_interval(means, within=(0.0, 1.0))
        found |= {f"{name}{end}": value for end, value in zip(_NAMES, interval, strict=True)}
    return {f"held_out/{name}": value for name, value in found.items()}


_KEY = "offline.path"


def files_digest(offline: OfflineSettings) -> str | None:
    """Return a hash of the files that a set reads, None where it reads none.

    Raises:
        UsageError: There is no such file.
    """
    if offline.path is None:
        return None
    files = files_of(Path(offline.path), _KEY)
    return hashlib.sha256(
        b"".join(hashlib.sha256(f.read_bytes()).digest() for f in files)
    ).hexdigest()


def read_debates(offline: OfflineSettings) -> list[Transcript]:
    """Return the debates of the files that a set reads, those of its first questions.

    Raises:
        UsageError: A file is not there, or holds no debates.
    """
    assert offline.path is not None
    imported = offline.imported
    found = [
        debate
        for file in files_of(Path(offline.path), _KEY)
        for debate in debates_in(
            file,
            _KEY,
            contract=imported.contract,
            kind=imported.kind,
            answer=imported.answer,
        )
    ]
    asked = list(dict.fromkeys(identity(debate.question) for debate in found))
    wanted = set(asked[: offline.questions])
    return [debate for debate in found if identity(debate.question) in wanted]


def learned_from(
    offline: OfflineSettings, sources: Sequence[DataSource], renderer: Renderer, window: int | None
) -> tuple[list[Transcript], Counter[str]]:
    """Return the debates of a set's files with tokens, and how many are left out, by cause.

    Those about held-out questions would teach what a run is measured on.

    Args:
        offline: The set.
        sources: Whose held-out questions are not learned from.
        renderer: Makes the ids.
        window: Of the model, in tokens.

    Raises:
        UsageError: A file is not there, or holds no debates.
    """
    names: tuple[Split, ...] = ("dev", "test")
    asked = [q for one in sources for name in names for q in one.split(name, MOST_HELD_OUT)]
    held = {normalised(identity(question)) for question in asked}
    kept, left_out = list[Transcript](), Counter[str]()
    for debate in read_debates(offline):
        if normalised(identity(debate.question)) in held:
            left_out["left_out/dev_or_test"] += 1
            continue
        try:
            read_debate(debate)
        except ValueError:
            left_out["left_out/unreadable"] += 1
            continue
        kept.append(with_tokens(debate, renderer, window))
    return kept, left_out


def with_tokens(debate: Transcript, renderer: Renderer, window: int | None) -> Transcript:
    """Return a debate whose turns hold their prompts and texts as ids of a model's tokenizer.

    Turns without a prompt, and those that do not fit the window, get none.
    """

    def heard(turn: Turn) -> Turn:
        branches = tuple(Branch(branch.guide, heard(branch.turn)) for branch in turn.branches)
        reply = None
        if turn.prompt:
            asked = Ask(debate.question, turn.agent, turn.round, tuple(turn.prompt))
            prompt = renderer.render(asked).prompt_ids
            stop = debate.protocol.contract_of(turn.round).stop
            ids = text_ids(turn.text, renderer, stop)
            if window is None or len(prompt) + len(ids) <= window:
                reply = Reply(turn.text, "end", prompt, ids)
        return replace(turn, reply=reply, branches=branches)

    return replace(debate, turns=tuple(heard(turn) for turn in debate.turns))


def text_ids(text: str, renderer: Renderer, stop: str | None) -> tuple[int, ...]:
    """Return a reply as ids, with the end token where no stop string ends it."""
    ids = renderer.encode(renderer.plain(text))
    end = renderer.tokenizer.eos_token_id
    if end is not None and not (stop is not None and text.endswith(stop)):
        ids.append(int(end))
    return tuple(ids)


ENOUGH = 16
"""Turns after which a phase that can imitate none of them is stopped: fewer may fail by chance."""


class Imitation:
    """Makes batches fit to be imitated.

    Args:
        contract: Of the replies, as text.
        is_demonstrated: Whether the data wrote them.
    """

    def __init__(self, contract: str, *, is_demonstrated: bool) -> None:
        self._contract, self._is_demonstrated = contract, is_demonstrated
        self._seen: Counter[str] = Counter()

    def fit(
        self, transcripts: Sequence[Transcript], batch: Batch
    ) -> tuple[Batch, dict[str, float]]:
        """Return the batch without weights below 0, and counts of what is not imitated.

        Raises:
            UsageError: What was demonstrated so far would do harm, or nothing.
        """
        batch, against = without_negative_weights(batch)
        found = look_at_demonstrations(transcripts)
        self._seen += found
        if self._is_demonstrated and self._seen["turns"] >= ENOUGH:
            problem = harm_of(self._seen, self._contract)
            if problem is not None:
                raise UsageError(f"rollout.engine.type: {problem}")
        return batch, {
            "imitation/failed_turns": float(found["failed"]),
            "imitation/turns_against": float(against),
        }


def look_at_demonstrations(transcripts: Sequence[Transcript]) -> Counter[str]:
    """Count what a supervised phase would imitate.

    Returns:
        `turns`; `failed` ones, without a readable answer; those that were `asked` to compare
        others, and of these the `silent` ones, which did not.
    """
    found: Counter[str] = Counter()
    for debate in map(read_debate, transcripts):
        for turn in debate.turns.values():
            found["turns"] += 1
            found["failed"] += turn.failed
            if debate.expected_pairs(turn):
                found["asked"] += 1
                found["silent"] += not turn.parsed.comparisons
    return found


def harm_of(found: Mapping[str, int], contract: str) -> str | None:
    """Return why turns must not be imitated, as `look_at_demonstrations` counts them, if so."""
    if found["turns"] and found["failed"] == found["turns"]:
        return (
            f"found {found['turns']:,} demonstrated turns, none of which holds an answer that "
            f"contract {contract} can read, so there is nothing to imitate; expected "
            "demonstrations in the form of debate.contract, and room for them in rollout.max_tokens"
        )
    if found["asked"] and found["silent"] == found["asked"]:
        return (
            f"found {found['asked']:,} demonstrated turns that are asked to compare others and do "
            "not, which would teach agents not to compare; expected debate.type: direct for this "
            "phase, or data that demonstrates comparisons, such as signs_puzzle in the compact "
            "style, with room for them in rollout.max_tokens"
        )
    return None


def without_negative_weights(batch: Batch) -> tuple[Batch, int]:
    """Return the batch without weights below 0, and how many turns had one.

    A supervised loss raises what has a positive weight; a negative one would train against the
    demonstration. What weighs nothing still counts in denominators.
    """
    found = [_imitated(row) for row in batch.rows]
    return replace(batch, rows=tuple(row for row, _ in found)), sum(turns for _, turns in found)


def _imitated(row: Row) -> tuple[Row, int]:
    parts = row.advantages[None, :] if row.credits is None else row.credits
    against = (parts < 0).any(axis=0)
    if not against.any():
        return row, 0
    kept = np.maximum(parts, 0)
    credits = None if row.credits is None else kept
    turns = len(np.unique(row.segments[against]))
    return replace(row, advantages=kept.sum(axis=0), credits=credits), turns
