"""Log-probabilities by one plain forward pass, as a trainer computes them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
