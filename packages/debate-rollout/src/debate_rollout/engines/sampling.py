"""Drawing tokens: tempered distributions, filters and one stream of uniforms a reply."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from debate_rollout.engine import Sampling
from debate_rollout.rendering import piece_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


def seed_bits(seed: int) -> int:
    """Return a seed of 32 bits that depends on all of `seed`.

    torch's CPU generator reads the low 32 bits only, in which seeds may well agree.
    """
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=4).digest(), "little")


def uniforms(seed: int, count: int) -> Tensor:
    """Return `count` uniforms in [0, 1) that depend on the seed alone, float64."""
    generator = torch.Generator().manual_seed(seed_bits(seed))
    return torch.rand(count, generator=generator, dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class Draws:
    """How each row of a batch is sampled; B rows, T tokens at most.

    Attributes:
        uniforms_BT: One uniform a token.
        temperature_B: Divides the logits; 1 for greedy rows.
        greedy_B: Rows of temperature 0.
        top_k_B: 0 keeps every token.
        top_p_B: 1 keeps every token.
        min_p_B: 0 keeps every token.
        filtered: Whether any row has a filter.
    """

    uniforms_BT: Tensor
    temperature_B: Tensor
    greedy_B: Tensor
    top_k_B: Tensor
    top_p_B: Tensor
    min_p_B: Tensor
    filtered: bool

    @classmethod
    def of(cls, samplings: Sequence[Sampling], longest: int, device: torch.device) -> "Draws":
        """Return the draws of a batch."""
        draws_BT = torch.stack([uniforms(s.seed, longest) for s in samplings])
        column = {
            name: torch.tensor([float(getattr(s, name)) for s in samplings], device=device)
            for name in ("temperature", "top_k", "top_p", "min_p")
        }
        greedy_B = column["temperature"] == 0
        return cls(
            uniforms_BT=draws_BT.to(device),
            temperature_B=column["temperature"].masked_fill(greedy_B, 1.0),
            greedy_B=greedy_B,
            top_k_B=column["top_k"].long(),
            top_p_B=column["top_p"],
            min_p_B=column["min_p"],
            filtered=any(s.top_k > 0 or s.top_p < 1 or s.min_p > 0 for s in samplings),
        )

    def rows(self, kept: Tensor) -> "Draws":
        """Return the draws of some rows."""
        columns = [one.name for one in fields(self) if one.name != "filtered"]
        return replace(self, **{name: getattr(self, name)[kept] for name in columns})

    def draw(self, logits_BV: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Draw one token a row.

        Args:
            logits_BV: The model's logits.
            step: Which of the rows' uniforms to use.

        Returns:
            Ids [B], and their log-probabilities [B] under the tempered distribution over the
            whole vocabulary, before any filter; greedy rows have those of temperature 1.
        """
        logps_BV = (logits_BV.float() / self.temperature_B[:, None]).log_softmax(-1)
        probs_BV = logps_BV.double().exp()
        if self.filtered:
            probs_BV = self._filter(probs_BV)
        cdf_BV = probs_BV.cumsum(-1)
        total_B = cdf_BV[:, -1]
        # Below the total even after rounding, so that the token drawn has a probability.
        target_B = torch.minimum(
            self.uniforms_BT[:, step] * total_B, total_B.nextafter(torch.zeros_like(total_B))
        )
        ids_B = torch.searchsorted(cdf_BV, target_B[:, None], right=True)[:, 0]
        # Of logits that are not finite it finds no token; their log-probability says so.
        ids_B = ids_B.clamp(max=logits_BV.shape[-1] - 1)
        ids_B = torch.where(self.greedy_B, logps_BV.argmax(-1), ids_B)
        return ids_B, logps_BV.gather(-1, ids_B[:, None])[:, 0]

    def _filter(self, probs_BV: Tensor) -> Tensor:
        """Set to 0 what top_k, top_p and min_p leave out; the likeliest token always stays."""
        sorted_BV, order_BV = probs_BV.sort(stable=True, dim=-1, descending=True)
        rank_V = torch.arange(sorted_BV.shape[-1], device=sorted_BV.device)
        keep_BV = (rank_V < self.top_k_B[:, None]) | (self.top_k_B[:, None] <= 0)
        kept_BV = sorted_BV * keep_BV
        before_BV = kept_BV.cumsum(-1) - kept_BV
        top_p_B1 = self.top_p_B[:, None]
        keep_BV &= (before_BV < top_p_B1 * kept_BV.sum(-1, keepdim=True)) | (top_p_B1 >= 1)
        keep_BV &= sorted_BV >= self.min_p_B[:, None] * sorted_BV[:, :1]
        keep_BV[:, 0] = True
        return torch.zeros_like(probs_BV).scatter(-1, order_BV, sorted_BV * keep_BV)


class StopStrings:
    """Says whether the newest token of a reply completed one of its stop strings.

    Args:
        tokenizer: The tokenizer of the replies.
        stops: Stop strings.
        vocabulary: How many ids the model can sample.
    """

    def __init__(
        self, tokenizer: "PreTrainedTokenizerFast", stops: tuple[str, ...], vocabulary: int
    ) -> None:
        self._encoded = tuple(stop.encode() for stop in stops if stop)
        self._longest = max((len(stop) for stop in self._encoded), default=0)
        self.tail = self._longest + 8
        """How many of a reply's last tokens are enough to look at."""
        self._pieces = piece_bytes(tokenizer)
        self.may_complete_V = torch.zeros(vocabulary, dtype=torch.bool)
        """Tokens that could complete a stop string; all others need no look."""
        if self._encoded:
            may = [self._may_complete(self._pieces[i]) for i in range(vocabulary)]
            self.may_complete_V = torch.tensor(may)

    def _may_complete(self, piece: bytes) -> bool:
        return any(
            stop in piece or any(piece.startswith(stop[k:]) for k in range(1, len(stop)))
            for stop in self._encoded
        )

    def completed(self, ids: Sequence[int]) -> bool:
        """Return whether a stop string ends inside the last of `ids`, a reply's last tokens."""
        tail_bytes = self._pieces[ids[-1]]
        wanted = len(tail_bytes) + self._longest - 1
        at = len(ids) - 2
        while at >= 0 and len(tail_bytes) < wanted:
            tail_bytes = self._pieces[ids[at]] + tail_bytes
            at -= 1
        return any(stop in tail_bytes for stop in self._encoded)


def plain_logps(
    model: "PreTrainedModel",
) -> Callable[[Sequence[int], Sequence[int], float], list[float]]:
    """Return the reference for `debate_rollout.testing`.

    Args:
        model: A causal language model, on any device; read at each call, so later changes count.

    Returns:
        From prompt ids, reply ids and a temperature to the reply's log-probabilities.
    """

    @torch.inference_mode()
    def logps(
        prompt_ids: Sequence[int], token_ids: Sequence[int], temperature: float
    ) -> list[float]:
        device = next(model.parameters()).device
        ids_1T = torch.tensor([[*prompt_ids, *token_ids]], device=device)
        logits_TV = model(input_ids=ids_1T, use_cache=False).logits[0].float() / temperature
        logps_TV = logits_TV.log_softmax(-1)[len(prompt_ids) - 1 : -1]
        said_T1 = ids_1T[0, len(prompt_ids) :, None]
        found: list[float] = logps_TV.gather(-1, said_T1)[:, 0].tolist()
        return found

    return logps
