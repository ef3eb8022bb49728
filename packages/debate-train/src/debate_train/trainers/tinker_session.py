"""An open `tinker` trainer: batches become calls of a server, and each trap has its guard."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from tinker import types

from debate_rollout.engine import Weights
from debate_rollout.engines.tinker import CALL_TIMEOUT_S
from debate_train.batches.row_types import Batch, Floats, Row, minibatches, weigh
from debate_train.checkpoints.trainer_state import COUNTS_FILE
from debate_train.errors import ModelError, RunFailure
from debate_train.losses import Loss, LossInputs, mismatch_correction
from debate_train.models.loaded_model import LoadedModel
from debate_train.trainers.tinker import SERVED_LOSSES
from debate_train.trainers.tinker_policy import TinkerPolicy
from debate_train.trainers.tinker_probe import PROBE_ROW, norm_of
from debate_train.trainers.tinker_rows import PLAIN, SentRow, datums, logps_of
from debate_train.trainers.torch_session import Skips, StepStats, Update

if TYPE_CHECKING:
    from debate_train.trainers.tinker import TinkerTrainer


_AT_RATIO_ONE = ("reinforce", "sft")
"""Losses without a ratio: the server's importance sampling against the present policy."""
_SAME_LOGPS = 1e-5
"""Largest change of a fixed row's log-probabilities between two passes of the same weights."""


class TinkerSession:
    """An open `TinkerTrainer`."""

    def __init__(
        self, config: "TinkerTrainer", loaded: LoadedModel, loss: Loss, total_steps: int
    ) -> None:
        assert isinstance(loaded.remote, TinkerPolicy)
        self._config = config
        self._policy = loaded.remote
        self._tokenizer = loaded.tokenizer
        self._loss = loss
        self._loss_name = SERVED_LOSSES[loss.type]
        self._total_steps = total_steps
        self._window = loaded.model.config.get_text_config().max_position_embeddings
        self._steps = 0
        self._is_whole = True
        self._needs_optimizer = True
        # Log-probabilities of the fixed row, after the last update and the one before.
        self._last_check: NDArray[np.float64] | None = None
        self._earlier_check: NDArray[np.float64] | None = None

    def step(self, batch: Batch) -> dict[str, float]:
        """Make the updates of a batch."""
        started = time.perf_counter()
        self._begin()
        self._refuse_older_weights()
        self._refuse_long_rows(batch)
        learning_rate = self._config.learning_rate * self._config.rate_factor(
            self._steps, self._total_steps
        )
        parts = [_with_actions(part) for part in minibatches(batch, self._config.minibatch_size)]
        parts = [part for part in parts if part.rows]
        old_logps = self._score_before_updates(parts)

        stats = StepStats(epochs=self._config.epochs)
        updates: list[Update] = []
        self._is_whole = False
        for _ in range(self._config.epochs):
            for part, old_logps_of_part in zip(parts, old_logps, strict=True):
                updates.append(self._update(part, old_logps_of_part, learning_rate, stats))
        stats.updates = len(updates)
        self._steps += 1
        self._is_whole = True
        # A batch without rows leaves the weights, and the fixed row's values, as they were.
        if updates:
            self._earlier_check = self._last_check
            self._last_check = self._check_logps()
        usage = self._policy.usage
        return {
            **stats.metrics(batch.sampled_tokens),
            **Skips().metrics(updates),
            "optim/learning_rate": learning_rate,
            "tinker/prompt_tokens": float(usage.prompt_tokens),
            "tinker/sampled_tokens": float(usage.sampled_tokens),
            "tinker/trained_tokens": float(usage.trained_tokens),
            "tinker/scored_tokens": float(usage.scored_tokens),
            "time/train_s": time.perf_counter() - started,
        }

    def score(self, batch: Batch) -> list[float]:
        """Sum the log-probabilities of each row's actions."""
        self._begin()
        sums = [0.0] * len(batch.rows)
        numbers = [n for n, row in enumerate(batch.rows) if len(row.sampled_positions)]
        rows = [batch.rows[number] for number in numbers]
        for number, logps in zip(numbers, self._forward(rows), strict=True):
            sums[number] = float(logps.sum())
        return sums

    @property
    def completed(self) -> int | None:
        """Number of steps in the weights; None in the middle of a step."""
        return self._steps if self._is_whole else None

    def weights(self, version: int) -> Weights:
        """Make the sampling client of the present weights."""
        return self._policy.export(version)

    def save(self, directory: Path) -> None:
        """Save on the server, and write the path, the counts and the tokenizer."""
        self._policy.save(directory)
        self._tokenizer.save_pretrained(directory)
        content = {"schedule_steps": self._steps}
        (directory / COUNTS_FILE).write_text(json.dumps(content), encoding="utf-8")

    def load(self, directory: Path) -> None:
        """Restore adapter and optimizer from the server's state, and the counts."""
        file = directory / COUNTS_FILE
        try:
            steps = json.loads(file.read_bytes())["schedule_steps"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{file}: found no counts; expected them as written") from error
        self._policy.load(directory)
        self._steps = int(steps)
        self._needs_optimizer = False

    def close(self) -> None:
        """Leave the adapter on the server: the run's last evaluation samples from it."""

    def _begin(self) -> None:
        """Before the first call of a phase, take a new optimizer."""
        if self._needs_optimizer:
            self._policy.restart_optimizer()
            self._needs_optimizer = False

    def _optim_step(self, learning_rate: float) -> float | None:
        optimizer = self._config.optimizer
        parameters = types.AdamParams(
            learning_rate=learning_rate,
            beta1=getattr(optimizer, "beta1", 0.9),
            beta2=getattr(optimizer, "beta2", 0.95),
            eps=getattr(optimizer, "eps", 1e-8),
            # On one server, decay reaches the adapters of all users.
            weight_decay=0.0,
        )
        with self._policy.calling("optim_step"):
            future = self._policy.client.optim_step(parameters)
            response = future.result(timeout=CALL_TIMEOUT_S)
        self._policy.updated()
        return norm_of(response.metrics)

    def _score_before_updates(self, parts: Sequence[Batch]) -> list[list[Floats] | None]:
        """Compute the policy's own denominators of ratios before the batch, if needed."""
        against = self._loss.ratio_against
        num_updates = self._config.epochs * len(parts)
        needs_old = against == "trainer" or (against == "auto" and num_updates > 1)
        if self._loss.type in _AT_RATIO_ONE or not needs_old:
            return [None] * len(parts)
        return [_narrowed(self._forward(part.rows)) for part in parts]

    def _update(
        self,
        part: Batch,
        old_logps: list[Floats] | None,
        learning_rate: float,
        stats: StepStats,
    ) -> Update:
        # Denominators count the whole update, as in our own trainers.
        weighed, weights = weigh(part, self._loss.aggregation)
        rows = weighed.rows
        is_scored = old_logps is not None
        if self._loss.type in _AT_RATIO_ONE:
            old_logps = _narrowed(self._forward(rows))
        if old_logps is None:
            old_logps = [row.sampler_logps for row in rows]
        sent_rows = []
        for row, weights_A, old_A in zip(rows, weights, old_logps, strict=True):
            slopes_A = row.advantages.astype(np.float64) * weights_A
            slopes_A = slopes_A * self._correction(row, old_A)
            sent_rows.append(SentRow(row, slopes_A, old_A))

        sent = datums(sent_rows, self._policy.reduction)
        with self._policy.calling("forward_backward"):
            future = self._policy.client.forward_backward(
                sent, self._loss_name, self._loss_settings()
            )
            output = future.result(timeout=CALL_TIMEOUT_S)
        self._policy.usage.trained_tokens += sum(len(row.tokens) for row in rows)
        # Refused before the step: the server would take it with a gradient that is not finite.
        logps = logps_of(output.loss_fn_outputs, rows)
        self._measure(stats, rows, weights, old_logps, logps, is_scored=is_scored)
        norm = self._optim_step(learning_rate)
        if norm is not None and not np.isfinite(norm):
            raise RunFailure(
                f"{self._config.base_url}: found a gradient of norm {norm}, which the server has "
                "taken; expected a finite one: go on from the last checkpoint with --resume"
            )
        return Update(grad_norm=float("nan") if norm is None else norm, is_skipped=False)

    def _correction(self, row: Row, old_A: Floats) -> NDArray[np.float64] | float:
        """Compute the factor for sampler against trainer, a constant of the update."""
        cap = getattr(self._loss, "importance_cap", None)
        if cap is None or self._loss.type in _AT_RATIO_ONE:
            return 1.0
        inputs = _loss_inputs([row], [np.zeros(len(old_A), np.float32)], [old_A], [old_A])
        factors: NDArray[np.float64] = mismatch_correction(inputs, cap).numpy()
        return factors

    def _loss_settings(self) -> dict[str, float] | None:
        if self._loss_name != "ppo":
            return None
        # Bounds of the ratio itself, where ours are distances from 1.
        return {
            "clip_low_threshold": 1 - getattr(self._loss, "clip_low", 0.2),
            "clip_high_threshold": 1 + getattr(self._loss, "clip_high", 0.2),
        }

    def _measure(
        self,
        stats: StepStats,
        rows: Sequence[Row],
        weights: Sequence[Floats],
        old_logps: Sequence[Floats],
        logps: Sequence[NDArray[np.float64]],
        *,
        is_scored: bool,
    ) -> None:
        """Measure the loss and its diagnostics, by our own equations."""
        inputs = _loss_inputs(rows, weights, old_logps, logps)
        stats.add("loss", self._loss(inputs))
        if not self._loss.supervised:
            # The gap before the batch's first update; later ones move the policy.
            gap_A = inputs.sampler_logps_A - inputs.logps_A
            if is_scored:
                gap_A = inputs.sampler_logps_A - inputs.old_logps_A
            stats.add("optim/kl_sample_train_v1", gap_A)
            stats.add("optim/kl_sample_train_v2", 0.5 * gap_A**2)
            ratio_A = (inputs.logps_A - inputs.old_logps_A).exp()
            stats.watch("optim/ratio_min", "optim/ratio_max", ratio_A)
        for name, values in self._loss.diagnostics(inputs).items():
            stats.add(name, values)

    def _forward(self, rows: Sequence[Row]) -> list[NDArray[np.float64]]:
        """Compute the log-probabilities of each row's actions under the present weights."""
        sent_rows = []
        for row in rows:
            zeros = np.zeros(len(row.sampled_positions), np.float32)
            sent_rows.append(SentRow(row, zeros.astype(np.float64), zeros))
        sent = datums(sent_rows, PLAIN)
        if not sent:
            return []
        with self._policy.calling("forward"):
            future = self._policy.client.forward(sent, "importance_sampling")
            output = future.result(timeout=CALL_TIMEOUT_S)
        self._policy.usage.scored_tokens += sum(len(row.tokens) for row in rows)
        return logps_of(output.loss_fn_outputs, rows)

    def _check_logps(self) -> NDArray[np.float64]:
        (logps,) = self._forward([PROBE_ROW])
        return logps

    def _refuse_older_weights(self) -> None:
        """Refuse to train on weights put back by an older sampling client.

        Raises:
            RunFailure: The fixed row's log-probabilities are not those after the last update.
        """
        if self._last_check is None:
            return
        now = self._check_logps()
        change = float(np.abs(now - self._last_check).mean())
        last_update = 0.0
        if self._earlier_check is not None:
            last_update = float(np.abs(self._last_check - self._earlier_check).mean())
        # Servers that do not repeat to the last bit move less than an update that is undone.
        if change > max(_SAME_LOGPS, 0.5 * last_update):
            raise RunFailure(
                f"{self._config.base_url}: the log-probabilities of a fixed row moved by "
                f"{change:.2g} since the last update, which moved them by {last_update:.2g}; "
                "expected no change: a client of older weights has sampled, and so put them back. "
                "Go on from the last checkpoint with --resume, and let no other program use "
                "this adapter"
            )

    def _refuse_long_rows(self, batch: Batch) -> None:
        longest = max((len(row) for row in batch.rows), default=0)
        if longest > self._window:
            raise RunFailure(
                f"a row of {longest} tokens; expected at most {self._window}, the model's window, "
                "which servers do not check"
            )


def _with_actions(part: Batch) -> Batch:
    rows = tuple(row for row in part.rows if len(row.sampled_positions))
    return replace(part, rows=rows)


def _narrowed(logps: Sequence[NDArray[np.float64]]) -> list[Floats]:
    return [row_logps.astype(np.float32) for row_logps in logps]


def _loss_inputs(
    rows: Sequence[Row],
    weights: Sequence[Floats],
    old_logps: Sequence[Floats],
    logps: Sequence[Floats] | Sequence[NDArray[np.float64]],
) -> LossInputs:
    """Lay rows end to end, as one pack, in float64."""

    def joined(arrays: Sequence[NDArray[np.floating]]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(arrays).astype(np.float64))

    row_numbers = np.repeat(np.arange(len(rows)), [len(row.sampled_positions) for row in rows])
    return LossInputs(
        logps_A=joined(logps),
        old_logps_A=joined(old_logps),
        sampler_logps_A=joined([row.sampler_logps for row in rows]),
        advantages_A=joined([row.advantages for row in rows]),
        weights_A=joined(weights),
        rows_A=torch.from_numpy(row_numbers),
        pairs_A=torch.full((len(row_numbers),), -1),
    )
