"""The generate loop: left-padded batches, one cache, finished rows dropped."""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from debate_rollout.engine import Sampling
from debate_rollout.engines.transformers.drawing import Draws
from debate_rollout.engines.transformers.key_cache import growing_cache, sharing_keys
from debate_rollout.engines.transformers.stop_strings import StopStrings
from debate_rollout.errors import NotFiniteError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DROP_SHARE = 0.125
"""Rows leave the batch and its cache once this share of it is finished."""


@dataclass(frozen=True, slots=True)
class Job:
    """One reply to sample; `sampling.max_tokens` fits the context window."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    stops: StopStrings


@dataclass(slots=True)
class Sampled:
    """Sampled ids with their log-probabilities, and why they ended."""

    ids: list[int]
    logps: list[float]
    finish: Literal["end", "stop", "length"]


@dataclass(slots=True)
class _Batch:
    """The rows still being sampled. `row_B` is their place in the jobs."""

    row_B: Tensor
    limit_B: Tensor
    done_B: Tensor
    may_stop_BV: Tensor | None
    position_B: Tensor
    mask_BT: Tensor
    draws: Draws
    cache: Any

    def keep(self, kept: Tensor) -> None:
        self.row_B = self.row_B[kept]
        self.limit_B = self.limit_B[kept]
        self.done_B = self.done_B[kept]
        self.position_B = self.position_B[kept]
        self.mask_BT = self.mask_BT[kept]
        self.draws = self.draws.rows(kept)
        if self.may_stop_BV is not None and self.may_stop_BV.shape[0] > 1:
            self.may_stop_BV = self.may_stop_BV[kept]
        self.cache.batch_select_indices(kept)


class Decoder:
    """Samples batches from one model.

    Args:
        model: A causal language model in evaluation mode.
        end_ids: Ids that end a reply.
        pad_id: Fills the left of short prompts; masked.
    """

    def __init__(self, model: "PreTrainedModel", end_ids: Sequence[int], pad_id: int) -> None:
        self._model = model
        self._device = next(model.parameters()).device
        self._end_ids = torch.tensor(sorted(end_ids), dtype=torch.long, device=self._device)
        self._pad_id = pad_id
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._last_only: Mapping[str, object] = (
            {"logits_to_keep": 1}
            if "logits_to_keep" in inspect.signature(base.forward).parameters
            else {}
        )

    @torch.inference_mode()
    def sample(self, jobs: Sequence[Job]) -> list[Sampled]:
        """Return one sampled reply a job; all of them run side by side."""
        with sharing_keys(self._model):
            return self._sample(jobs)

    def _sample(self, jobs: Sequence[Job]) -> list[Sampled]:
        longest = max(job.sampling.max_tokens for job in jobs)
        out_BT = torch.zeros((len(jobs), longest), dtype=torch.long, device=self._device)
        logps_BT = torch.zeros((len(jobs), longest), device=self._device)
        length_B = torch.zeros(len(jobs), dtype=torch.long, device=self._device)
        reason_B = torch.zeros_like(length_B)
        logits_BV, batch = self._prefill(jobs, longest)
        for step in range(longest):
            ids_B, step_logps_B = batch.draws.draw(logits_BV, step)
            out_BT[batch.row_B, step] = ids_B
            logps_BT[batch.row_B, step] = step_logps_B
            why_B = torch.where(step + 1 >= batch.limit_B, 3, 0)
            self._mark_stops(jobs, batch, ids_B, out_BT[:, : step + 1], why_B)
            why_B = torch.where(torch.isin(ids_B, self._end_ids), 1, why_B)
            ended_B = (why_B > 0) & ~batch.done_B
            if bool(ended_B.any()):
                length_B[batch.row_B[ended_B]] = step + 1
                reason_B[batch.row_B[ended_B]] = why_B[ended_B]
                batch.done_B = batch.done_B | ended_B
                finished = int(batch.done_B.sum())
                if finished == batch.done_B.shape[0]:
                    break
                if finished >= DROP_SHARE * batch.done_B.shape[0]:
                    kept = torch.nonzero(~batch.done_B)[:, 0]
                    batch.keep(kept)
                    ids_B = ids_B[kept]
            logits_BV = self._step(batch, ids_B)
        return _gather(out_BT, logps_BT, length_B, reason_B)

    def _mark_stops(
        self, jobs: Sequence[Job], batch: _Batch, ids_B: Tensor, out_BT: Tensor, why_B: Tensor
    ) -> None:
        if batch.may_stop_BV is None:
            return
        table_BV = batch.may_stop_BV
        may_B = (
            table_BV[0, ids_B]
            if table_BV.shape[0] == 1
            else table_BV.gather(1, ids_B[:, None])[:, 0]
        )
        for at in torch.nonzero(may_B & ~batch.done_B)[:, 0].tolist():
            row = int(batch.row_B[at])
            stops = jobs[row].stops
            if stops.completed(out_BT[row, -stops.tail :].tolist()):
                why_B[at] = 2

    def _prefill(self, jobs: Sequence[Job], longest: int) -> tuple[Tensor, _Batch]:
        """Run every different prompt once; return the next token's logits and the batch."""
        places: dict[tuple[int, ...], int] = {}
        source = [places.setdefault(job.prompt_ids, len(places)) for job in jobs]
        width = max(map(len, places))
        ids = [[self._pad_id] * (width - len(p)) + list(p) for p in places]
        mask = [[0] * (width - len(p)) + [1] * len(p) for p in places]
        mask_UT = torch.tensor(mask, device=self._device)
        cache = growing_cache(self._model.config)
        logits_UV = self._model(
            input_ids=torch.tensor(ids, device=self._device),
            attention_mask=mask_UT,
            position_ids=(mask_UT.cumsum(-1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            **self._last_only,
        ).logits[:, -1]
        source_B = torch.tensor(source, device=self._device)
        if len(places) < len(jobs):
            cache.batch_select_indices(source_B)
        lengths_B = torch.tensor([len(job.prompt_ids) for job in jobs], device=self._device)
        samplings = [job.sampling for job in jobs]
        limits = torch.tensor([s.max_tokens for s in samplings], device=self._device)
        return logits_UV[source_B], _Batch(
            row_B=torch.arange(len(jobs), device=self._device),
            limit_B=limits,
            done_B=torch.zeros(len(jobs), dtype=torch.bool, device=self._device),
            may_stop_BV=_stop_table(jobs, self._device),
            position_B=lengths_B,
            mask_BT=mask_UT[source_B],
            draws=Draws.of(samplings, longest, self._device),
            cache=cache,
        )

    def _step(self, batch: _Batch, ids_B: Tensor) -> Tensor:
        one_B1 = torch.ones_like(batch.mask_BT[:, :1])
        batch.mask_BT = torch.cat((batch.mask_BT, one_B1), dim=1)
        logits_BV: Tensor = self._model(
            input_ids=ids_B[:, None],
            attention_mask=batch.mask_BT,
            position_ids=batch.position_B[:, None],
            past_key_values=batch.cache,
            use_cache=True,
            **self._last_only,
        ).logits[:, -1]
        batch.position_B = batch.position_B + 1
        return logits_BV


def _stop_table(jobs: Sequence[Job], device: torch.device) -> Tensor | None:
    """Return which tokens may complete a stop: one row for all jobs, a row a job, or None."""
    different = {id(job.stops): job.stops for job in jobs}
    tables = [stops.may_complete_V for stops in different.values()]
    if not any(bool(table.any()) for table in tables):
        return None
    if len(tables) == 1:
        return tables[0][None].to(device)
    return torch.stack([job.stops.may_complete_V for job in jobs]).to(device)


_FINISH: dict[int, Literal["end", "stop", "length"]] = {1: "end", 2: "stop", 3: "length"}


def _gather(out_BT: Tensor, logps_BT: Tensor, length_B: Tensor, reason_B: Tensor) -> list[Sampled]:
    rows = zip(
        out_BT.tolist(), logps_BT.tolist(), length_B.tolist(), reason_B.tolist(), strict=True
    )
    found = [Sampled(ids[:n], logps[:n], _FINISH[why]) for ids, logps, n, why in rows]
    if not all(map(math.isfinite, chain.from_iterable(one.logps for one in found))):
        raise NotFiniteError(
            "the model's log-probabilities are not finite, so nothing can be sampled from it: its "
            "weights hold NaN or infinity, or its numbers overflow. Look for a training step "
            "that exploded (a lower trainer.learning_rate), a damaged model folder, or a dtype "
            "too narrow for the model (float16)"
        )
    return found
