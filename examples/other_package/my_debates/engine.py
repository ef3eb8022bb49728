"""A generate loop without batches or a cache: slow, and short enough to read."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch

from debate_protocol import Reply
from debate_rollout.engine import Capability, Request, Weights
from debate_rollout.engines import EngineSettings
from debate_rollout.rendering import Renderer, token_text


class Plain(EngineSettings):
    """Samples one token after the other from a copy of the model."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        ("tokens", "logps", "seeds", "full_weights")
    )
    type: Literal["plain"] = "plain"

    def open(
        self, model: Any, tokenizer: Any, template_kwargs: Mapping[str, Any] = {}
    ) -> "PlainSampler":
        """Return the running engine."""
        return PlainSampler(copy.deepcopy(model).eval(), Renderer(tokenizer, template_kwargs))


class PlainSampler:
    """The running engine."""

    capabilities = Plain.capabilities

    def __init__(self, model: Any, renderer: Renderer) -> None:
        self._model, self.renderer, self._version = model, renderer, 0
        self.context_window = model.config.max_position_embeddings

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, in order."""
        return [self._reply(request) for request in requests]

    def load(self, weights: Weights) -> None:
        """Serve these weights from the next token on."""
        self._model.load_state_dict(dict(weights.tensors))
        self._version = weights.version

    def close(self) -> None:
        """Nothing is held but memory."""

    @torch.inference_mode()
    def _reply(self, request: Request) -> Reply:
        how, ids, logps, finish, text = request.sampling, [], [], "length", ""
        chance = torch.Generator().manual_seed(how.seed)
        if not request.prompt_ids:
            raise ValueError("a request's prompt_ids: found none; expected at least one")
        if len(request.prompt_ids) >= self.context_window:
            return Reply("", "context_overflow", request.prompt_ids)
        while finish == "length" and len(ids) < how.max_tokens:
            tokens = [*request.prompt_ids, *ids]
            if len(tokens) == self.context_window:
                break
            logits = self._model(torch.tensor([tokens])).logits[0, -1].float()
            all_logps = (logits / how.temperature).log_softmax(-1)
            ids.append(int(torch.multinomial(all_logps.exp(), 1, generator=chance)))
            logps.append(float(all_logps[ids[-1]]))
            text = token_text(self.renderer.tokenizer, ids).text
            if ids[-1] in self.renderer.end_ids:
                finish = "end"
            elif any(stop in text for stop in how.stop):
                finish = "stop"
        given = tuple(request.prompt_ids), tuple(ids), tuple(logps)
        return Reply(text, finish, *given, how.temperature, self._version)
