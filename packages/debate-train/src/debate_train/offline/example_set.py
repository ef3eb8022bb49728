"""Examples of a phase: their rows and order, held-out pairs, files, and demonstrations."""

import hashlib
import random
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from debate_protocol.types import Branch, Reply, Transcript, Turn, TurnRequest
from debate_report.rollout_files import debates_in, files_of
from debate_rewards.estimates import bootstrap_interval
from debate_rewards.reward import read_debate
from debate_rollout.rendering import Renderer
from debate_train.batches.row_types import Batch, Row
from debate_train.batches.rows import Step
from debate_train.data.source import MOST_HELD_OUT, DataSource, Split
from debate_train.data.splits import identity, normalized, position
from debate_train.errors import UsageError
from debate_train.offline.offline_set import Completion, Example, OfflineSettings

__all__ = ["example_batch"]


STREAM = "generator"
"""The stream of all tokens of examples."""
ENOUGH = 16
"""Turns after which a phase that can imitate none of them is stopped: fewer may fail by chance."""
_PATH_KEY = "offline.path"


def example_batch(examples: Sequence[Example], seed: int) -> Batch:
    """Build the rows of a step.

    Args:
        examples: all with token ids. The advantage is 1 for the chosen reply of a pair, −1 for the
            rejected reply, and the weight of a reply to imitate.
        seed: seed of the batch.
    """
    rows: list[Row] = []
    for number, example in enumerate(examples):
        rows.append(_build_row(example, example.chosen, example.weight, number))
        if example.rejected is not None:
            rows.append(_build_row(example, example.rejected, -1.0, number))
    return Batch(
        rows=tuple(rows),
        streams=(STREAM,),
        sampled_tokens=sum(len(row.sampled_positions) for row in rows),
        turns=len(rows),
        seed=seed,
    )


def _build_row(example: Example, completion: Completion, advantage: float, number: int) -> Row:
    start = len(example.prompt_ids)
    length = len(completion.token_ids)
    advantages = np.full(length, advantage, np.float32)
    is_pair = example.rejected is not None
    return Row(
        tokens=np.array([*example.prompt_ids, *completion.token_ids], np.int32),
        sampled_positions=np.arange(start, start + length, dtype=np.int32),
        advantages=advantages,
        # Losses of examples are ratios to no sampler, at temperature 1.
        sampler_logps=np.zeros(length, np.float32),
        temperatures=np.ones(length, np.float32),
        streams=np.ones(length, np.int64),
        versions=np.full(length, example.weight_version, np.int32),
        segments=np.ones(length, np.int16),
        agent=example.agent,
        debate=number,
        group=number,
        adapter=example.adapter,
        pair=number if is_pair else -1,
        credits=None if is_pair else advantages[None, :],
    )


def lengths(examples: Sequence[Example]) -> dict[str, float]:
    """Compute the mean lengths in tokens of chosen and of rejected replies."""
    chosen_lengths = []
    rejected_lengths = []
    for example in examples:
        chosen_lengths.append(len(example.chosen.token_ids))
        if example.rejected is not None:
            rejected_lengths.append(len(example.rejected.token_ids))
    metrics = {}
    if chosen_lengths:
        metrics["offline/chosen_tokens"] = float(np.mean(chosen_lengths))
    if rejected_lengths:
        metrics["offline/rejected_tokens"] = float(np.mean(rejected_lengths))
    return metrics


@dataclass(slots=True)
class PhaseExamples:
    """The examples of a phase, with the counts and measures of their selection."""

    examples: list[Example]
    counts: Mapping[str, float] = field(default_factory=dict)
    held_out: list[Example] = field(default_factory=list)
    """Pairs of held-out questions."""

    def step(self, number: int, phase_step: int, size: int, run_seed: int) -> Step:
        """Select the examples of a step, in a shuffled order, epoch after epoch.

        Args:
            number: number of the step in the whole run.
            phase_step: number of the step in the phase.
            size: examples of a step.
            run_seed: the recipe's seed.
        """
        began = time.perf_counter()
        num_examples = len(self.examples)
        selected: list[Example] = []
        # A step may cross the end of an epoch, but has no example twice if there are enough.
        while len(selected) < min(size, num_examples):
            epoch, start = divmod(phase_step * size + len(selected), num_examples)
            order = list(range(num_examples))
            random.Random(f"examples/{run_seed}/{epoch}").shuffle(order)
            end = start + size - len(selected)
            selected += [self.examples[index] for index in order[start:end]]
        seed = zlib.crc32(f"{run_seed}/minibatches/{number}".encode())
        # The set is built once, before the first step, and its tokens count there.
        num_sampled = 0.0
        if phase_step == 0:
            num_sampled = self.counts.get("offline/sampled_tokens", 0.0)
        metrics = {
            **self.counts,
            **lengths(selected),
            "offline/epoch": (phase_step + 1) * size / num_examples,
            "env/all/sampled_tokens": num_sampled,
        }
        return Step(
            number=number,
            transcripts=(),
            scores=(),
            batch=example_batch(selected, seed),
            metrics=metrics,
            baselines={},
            began=began,
        )


def parted(
    transcripts: Iterable[Transcript], share: float, seed: int
) -> tuple[list[Transcript], list[Transcript]]:
    """Split debates into debates to learn from and debates of held-out questions.

    Only the recipe's seed and the question's text decide: all phases of a run hold out the same
    questions.
    """
    learned = []
    held_out = []
    for transcript in transcripts:
        if position(f"held_out/{seed}", transcript.question.text) < share:
            held_out.append(transcript)
        else:
            learned.append(transcript)
    return learned, held_out


def held_out_accuracies(
    pairs: Sequence[Example], before: Sequence[float], after: Sequence[float]
) -> dict[str, float]:
    """Measure a phase's preferences on held-out pairs.

    `preference_accuracy` is the share of pairs with more gain of log-probability since the phase's
    start for the chosen reply than for the rejected reply: a positive margin of implicit rewards
    for any β. `likelihood_accuracy` is the share of pairs with the likelier reply chosen,
    `likelihood_accuracy_before` the same at the phase's start. Each is a mean over questions of
    their pairs' mean, with a 95 % interval from resampled questions.

    Args:
        pairs: at least a single pair.
        before: log p of each pair's chosen, then rejected reply, at the phase's start.
        after: the same at the phase's end.
    """
    gains = [end - start for end, start in zip(after, before, strict=True)]
    # A chosen reply is preferred where its value is above the rejected one's.
    compared_values = {
        "preference_accuracy": gains,
        "likelihood_accuracy": after,
        "likelihood_accuracy_before": before,
    }
    questions = [str(pair.meta.get("question", number)) for number, pair in enumerate(pairs)]
    metrics = {
        "held_out/pairs": float(len(pairs)),
        "held_out/questions": float(len(set(questions))),
    }
    for name, values in compared_values.items():
        is_preferred: dict[str, list[bool]] = {}
        for number, question in enumerate(questions):
            chosen_value = values[2 * number]
            rejected_value = values[2 * number + 1]
            is_preferred.setdefault(question, []).append(chosen_value > rejected_value)
        # Pairs of one question are not independent, so questions are the units.
        means = [sum(outcomes) / len(outcomes) for outcomes in is_preferred.values()]
        mean, low, high = bootstrap_interval(means, within=(0.0, 1.0))
        metrics[f"held_out/{name}"] = mean
        metrics[f"held_out/{name}_low"] = low
        metrics[f"held_out/{name}_high"] = high
    return metrics


def files_digest(offline: OfflineSettings) -> str | None:
    """Hash the files of a set; `None` for a set without files.

    Raises:
        UsageError: There is no such file.
    """
    if offline.path is None:
        return None
    files = files_of(Path(offline.path), _PATH_KEY)
    # A hash of hashes, so that moving bytes from one file to the next changes it.
    digests = [hashlib.sha256(file.read_bytes()).digest() for file in files]
    return hashlib.sha256(b"".join(digests)).hexdigest()


def read_debates(offline: OfflineSettings) -> list[Transcript]:
    """Read the debates of a set's files on the first questions.

    Raises:
        UsageError: A file is missing, or holds no debates.
    """
    assert offline.path is not None
    imported = offline.imported
    debates: list[Transcript] = []
    for file in files_of(Path(offline.path), _PATH_KEY):
        debates += debates_in(
            file,
            _PATH_KEY,
            contract=imported.contract,
            kind=imported.kind,
            answer=imported.answer,
        )
    questions = list(dict.fromkeys(identity(debate.question) for debate in debates))
    first_questions = set(questions[: offline.questions])
    return [debate for debate in debates if identity(debate.question) in first_questions]


def learned_from(
    offline: OfflineSettings, sources: Sequence[DataSource], renderer: Renderer, window: int | None
) -> tuple[list[Transcript], Counter[str]]:
    """Read the debates of a set's files with token ids, and count the left-out debates, by cause.

    Args:
        offline: the set.
        sources: data sources. Their dev and test questions are left out: the run is measured on
            them.
        renderer: encodes prompts and texts.
        window: the model's, in tokens.

    Raises:
        UsageError: A file is missing, or holds no debates.
    """
    split_names: tuple[Split, ...] = ("dev", "test")
    held_out: set[str] = set()
    for source in sources:
        for name in split_names:
            for question in source.split(name, MOST_HELD_OUT):
                held_out.add(normalized(identity(question)))
    debates: list[Transcript] = []
    left_out: Counter[str] = Counter()
    for debate in read_debates(offline):
        if normalized(identity(debate.question)) in held_out:
            left_out["left_out/dev_or_test"] += 1
            continue
        try:
            read_debate(debate)
        except ValueError:
            left_out["left_out/unreadable"] += 1
            continue
        debates.append(with_tokens(debate, renderer, window))
    return debates, left_out


def with_tokens(debate: Transcript, renderer: Renderer, window: int | None) -> Transcript:
    """Encode the prompts and texts of a debate's turns as ids of a model's tokenizer.

    Turns without a prompt, and turns beyond the window, get no ids. A last turn that was cut at its
    token limit, as other programs note it, gets no end token.
    """
    is_cut_off = debate.turns and debate.meta.get("finish") == "length"
    cut_turn = debate.turns[-1] if is_cut_off else None

    def encode_turn(turn: Turn) -> Turn:
        branches = []
        for branch in turn.branches:
            branches.append(Branch(branch.guide, encode_turn(branch.turn)))
        reply = None
        if turn.prompt:
            request = TurnRequest(debate.question, turn.agent, turn.round, tuple(turn.prompt))
            prompt_ids = renderer.render(request).prompt_ids
            stop = debate.protocol.contract_of(turn.round).stop
            is_cut = turn is cut_turn
            ids = text_ids(turn.text, renderer, stop, is_cut=is_cut)
            if window is None or len(prompt_ids) + len(ids) <= window:
                reply = Reply(turn.text, "length" if is_cut else "end", prompt_ids, ids)
        return replace(turn, reply=reply, branches=tuple(branches))

    return replace(debate, turns=tuple(encode_turn(turn) for turn in debate.turns))


def text_ids(
    text: str, renderer: Renderer, stop: str | None, *, is_cut: bool = False
) -> tuple[int, ...]:
    """Encode a reply, with the end token unless a stop string ends it, or it was cut."""
    ids = renderer.encode(renderer.plain(text))
    end = renderer.tokenizer.eos_token_id
    # An engine stops at the string: the policy never samples an end token there.
    ends_with_stop = stop is not None and text.endswith(stop)
    if end is not None and not ends_with_stop and not is_cut:
        ids.append(int(end))
    return tuple(ids)


class Imitation:
    """Prepares batches for a supervised loss, and stops harmful demonstrations.

    Args:
        contract: contract of the replies, as text.
        is_demonstrated: whether the replies are demonstrations of the data.
    """

    def __init__(self, contract: str, *, is_demonstrated: bool) -> None:
        self._contract = contract
        self._is_demonstrated = is_demonstrated
        self._totals: Counter[str] = Counter()

    def fit(
        self, transcripts: Sequence[Transcript], batch: Batch
    ) -> tuple[Batch, dict[str, float]]:
        """Remove weights below 0 from a batch, and count turns without imitation.

        Raises:
            UsageError: The demonstrations so far would do harm, or have no effect.
        """
        fitted_batch, num_negative = without_negative_weights(batch)
        counts = look_at_demonstrations(transcripts)
        self._totals += counts
        if self._is_demonstrated and self._totals["turns"] >= ENOUGH:
            problem = harm_of(self._totals, self._contract)
            if problem is not None:
                raise UsageError(f"rollout.engine.type: {problem}")
        metrics = {
            "imitation/failed_turns": float(counts["failed"]),
            "imitation/turns_against": float(num_negative),
        }
        return fitted_batch, metrics


def look_at_demonstrations(transcripts: Sequence[Transcript]) -> Counter[str]:
    """Count the turns to imitate in a supervised phase.

    Returns:
        Counts of `turns`; of `failed` turns, without a readable answer; of turns `asked` to compare
        others, and of `silent` turns among these, without a comparison.
    """
    counts: Counter[str] = Counter()
    for transcript in transcripts:
        debate = read_debate(transcript)
        for turn in debate.turns.values():
            counts["turns"] += 1
            counts["failed"] += turn.failed
            if debate.expected_pairs(turn):
                counts["asked"] += 1
                counts["silent"] += not turn.parsed.comparisons
    return counts


def harm_of(counts: Mapping[str, int], contract: str) -> str | None:
    """Explain why demonstrations must not be imitated; `None` if they can be.

    Args:
        counts: from `look_at_demonstrations`.
        contract: contract of the replies, as text.
    """
    if counts["turns"] and counts["failed"] == counts["turns"]:
        return (
            f"found {counts['turns']:,} demonstrated turns, and no answer in them that "
            f"contract {contract} can read, so there is nothing to imitate; expected "
            "demonstrations in the form of debate.contract, and room for them in rollout.max_tokens"
        )
    if counts["asked"] and counts["silent"] == counts["asked"]:
        return (
            f"found {counts['asked']:,} demonstrated turns that are asked to compare others and do "
            "not, which would teach agents not to compare; expected debate.type: direct for this "
            "phase, or data that demonstrates comparisons, such as signs_puzzle in the compact "
            "style, with room for them in rollout.max_tokens"
        )
    return None


def without_negative_weights(batch: Batch) -> tuple[Batch, int]:
    """Set weights below 0 to 0, and count their turns.

    A supervised loss would train against the demonstration under a negative weight. Tokens without
    weight still count in denominators.
    """
    rows = []
    num_turns = 0
    for row in batch.rows:
        credits_SA = row.advantages[None, :] if row.credits is None else row.credits
        is_negative_A = (credits_SA < 0).any(axis=0)
        if not is_negative_A.any():
            rows.append(row)
            continue
        num_turns += len(np.unique(row.segments[is_negative_A]))
        # Stream by stream: a positive credit must not hide another's negative one in the sum.
        clipped_SA = np.maximum(credits_SA, 0)
        rows.append(
            replace(
                row,
                advantages=clipped_SA.sum(axis=0),
                credits=None if row.credits is None else clipped_SA,
            )
        )
    return replace(batch, rows=tuple(rows)), num_turns
