"""Drawing tokens: tempered distributions, filters and one stream of uniforms a reply."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from debate_rollout.engine import Sampling
from debate_rollout.rendering import piece_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

_MARGIN_TOKENS = 8


def seed_bits(seed: int) -> int:
    """Hash a seed to 32 bits.

    torch's CPU generator reads the low 32 bits only, and different seeds may agree in them.
    """
    digest = hashlib.blake2b(str(seed).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def uniforms(seed: int, count: int) -> Tensor:
    """Draw `count` uniforms in [0, 1), float64, from the seed alone."""
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
        """Collect the draws of a batch of at most `longest` tokens a row."""
        uniforms_BT = torch.stack([uniforms(sampling.seed, longest) for sampling in samplings])

        def column(setting: str) -> Tensor:
            values = [float(getattr(sampling, setting)) for sampling in samplings]
            return torch.tensor(values, device=device)

        temperature_B = column("temperature")
        greedy_B = temperature_B == 0
        top_k_B = column("top_k").long()
        top_p_B = column("top_p")
        min_p_B = column("min_p")
        has_filter_B = (top_k_B > 0) | (top_p_B < 1) | (min_p_B > 0)
        return cls(
            uniforms_BT=uniforms_BT.to(device),
            temperature_B=temperature_B.masked_fill(greedy_B, 1.0),
            greedy_B=greedy_B,
            top_k_B=top_k_B,
            top_p_B=top_p_B,
            min_p_B=min_p_B,
            filtered=bool(has_filter_B.any()),
        )

    def rows(self, rows: Tensor) -> "Draws":
        """Select the draws of some rows."""
        return Draws(
            uniforms_BT=self.uniforms_BT[rows],
            temperature_B=self.temperature_B[rows],
            greedy_B=self.greedy_B[rows],
            top_k_B=self.top_k_B[rows],
            top_p_B=self.top_p_B[rows],
            min_p_B=self.min_p_B[rows],
            filtered=self.filtered,
        )

    def draw(self, logits_BV: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Draw one token a row.

        Args:
            logits_BV: The model's logits.
            step: Index of the uniforms to use.

        Returns:
            Ids [B], and their log-probabilities [B] under the tempered distribution over the
            whole vocabulary, before any filter; greedy rows have those of temperature 1.
        """
        logps_BV = (logits_BV.float() / self.temperature_B[:, None]).log_softmax(-1)
        # Cumulated in float64: float32 would round small probabilities of a large vocabulary away.
        probs_BV = logps_BV.double().exp()
        if self.filtered:
            probs_BV = self._filter(probs_BV)
        cdf_BV = probs_BV.cumsum(-1)
        total_B = cdf_BV[:, -1]
        # Below the total even after rounding, so that the drawn token has a probability above 0.
        largest_B = total_B.nextafter(torch.zeros_like(total_B))
        target_B = torch.minimum(self.uniforms_BT[:, step] * total_B, largest_B)
        # The first token whose cumulated probability exceeds the target: `right` passes over
        # tokens of probability 0, which a filter leaves in the vocabulary.
        ids_B = torch.searchsorted(cdf_BV, target_B[:, None], right=True)[:, 0]
        # Logits that are not finite lead past the vocabulary. Their log-probability is not finite
        # either, by which the sampler refuses the reply.
        ids_B = ids_B.clamp(max=logits_BV.shape[-1] - 1)
        ids_B = torch.where(self.greedy_B, logps_BV.argmax(-1), ids_B)
        return ids_B, logps_BV.gather(-1, ids_B[:, None])[:, 0]

    def _filter(self, probs_BV: Tensor) -> Tensor:
        """Set to 0 all tokens outside top_k, top_p and min_p; the likeliest always stays."""
        # Stable, so that equal probabilities are cut by id, the same on every device.
        sorted_BV, order_BV = probs_BV.sort(stable=True, dim=-1, descending=True)
        rank_V = torch.arange(sorted_BV.shape[-1], device=sorted_BV.device)
        top_k_B1 = self.top_k_B[:, None]
        allowed_BV = (rank_V < top_k_B1) | (top_k_B1 <= 0)

        # top_p counts shares of the mass within top_k, and includes the token that crosses it.
        within_BV = sorted_BV * allowed_BV
        mass_before_BV = within_BV.cumsum(-1) - within_BV
        mass_B1 = within_BV.sum(-1, keepdim=True)
        top_p_B1 = self.top_p_B[:, None]
        allowed_BV &= (mass_before_BV < top_p_B1 * mass_B1) | (top_p_B1 >= 1)

        allowed_BV &= sorted_BV >= self.min_p_B[:, None] * sorted_BV[:, :1]
        allowed_BV[:, 0] = True
        return torch.zeros_like(probs_BV).scatter(-1, order_BV, sorted_BV * allowed_BV)


class StopStrings:
    """Detects stop strings that end inside the newest token of a reply.

    Args:
        tokenizer: The tokenizer of the replies.
        stops: Stop strings.
        vocabulary: Number of ids that the model can sample.
    """

    def __init__(
        self, tokenizer: "PreTrainedTokenizerFast", stops: tuple[str, ...], vocabulary: int
    ) -> None:
        # In bytes: a token may end in the middle of a character.
        self._encoded = tuple(stop.encode() for stop in stops if stop)
        self._longest = max((len(stop) for stop in self._encoded), default=0)
        # A token may have no bytes, so more tokens than bytes are read.
        self.tail = self._longest + _MARGIN_TOKENS
        """Number of last tokens of a reply that `completed` needs."""
        self._pieces = piece_bytes(tokenizer)
        self.may_complete_V = torch.zeros(vocabulary, dtype=torch.bool)
        """Tokens that could complete a stop string; `completed` is called for these only."""
        if self._encoded:
            may_complete = [self._may_complete(self._pieces[i]) for i in range(vocabulary)]
            self.may_complete_V = torch.tensor(may_complete)

    def _may_complete(self, piece: bytes) -> bool:
        for stop in self._encoded:
            if stop in piece:
                return True
            # The string may have begun in earlier tokens: this one begins with its rest.
            if any(piece.startswith(stop[start:]) for start in range(1, len(stop))):
                return True
        return False

    def completed(self, ids: Sequence[int]) -> bool:
        """Check whether a stop string ends inside the last of `ids`, a reply's last tokens."""
        tail_bytes = self._pieces[ids[-1]]
        # Further back a stop string would have ended before the last token.
        num_needed = len(tail_bytes) + self._longest - 1
        position = len(ids) - 2
        while position >= 0 and len(tail_bytes) < num_needed:
            tail_bytes = self._pieces[ids[position]] + tail_bytes
            position -= 1
        return any(stop in tail_bytes for stop in self._encoded)


def plain_logps(
    model: "PreTrainedModel",
) -> Callable[[Sequence[int], Sequence[int], float], list[float]]:
    """Build the reference log-probabilities for `debate_rollout.testing`.

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
        # Each position predicts the next token.
        logps_TV = logits_TV.log_softmax(-1)[len(prompt_ids) - 1 : -1]
        reply_ids_T1 = ids_1T[0, len(prompt_ids) :, None]
        reply_logps: list[float] = logps_TV.gather(-1, reply_ids_T1)[:, 0].tolist()
        return reply_logps

    return logps
