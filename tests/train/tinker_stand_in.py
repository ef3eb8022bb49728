"""A server of the Tinker interface in this process, with the contract and the traps of SkyRL's.

`test_tinker.py` holds it against answers that `tinker_recording.py` took from the real server.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from tinker import types
from torch import Tensor, nn

from debate_train.models import PretrainedModel
from debate_train.models.loaded_model import Lora

FUSED = {".q_proj": (".k_proj", ".v_proj"), ".gate_proj": (".up_proj",)}
"""Projections that share one matrix A on SkyRL's server, which computes each group at once."""

State = dict[str, Tensor]


def tie(model: nn.Module) -> None:
    """Let the projections of a group share the first's matrix A."""
    modules: dict[str, Any] = dict(model.named_modules())
    for first, others in FUSED.items():
        for name in [name for name in modules if name.endswith(first)]:
            for other in others:
                weight = modules[name].lora_A["default"].weight
                modules[name.replace(first, other)].lora_A["default"].weight = weight


def done(value: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def failed(error: Exception) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


@dataclass
class Place:
    """A place for an adapter; what is left of its gradient stays when the adapter goes."""

    gradient: State = field(default_factory=dict)
    num_rows: int = 0


class StandIn:
    """The server, and the service client on it.

    Args:
        folder: Of the base model.
        rank: Of all adapters.
        reduction: `mean` as SkyRL's JAX backend, `sum` over tokens and rows as other servers.
        base_model: The served name.
    """

    def __init__(
        self, folder: str, rank: int, reduction: str = "mean", base_model: str | None = None
    ) -> None:
        self.base_model = base_model or folder
        self.reduction = reduction
        loaded = PretrainedModel(name=folder, lora=Lora(rank=rank, alpha=32)).load(0)
        self.model = loaded.model
        tie(self.model)
        self.parameters = {name: p for name, p in self.model.named_parameters() if ".lora_" in name}
        self.places = [Place() for _ in range(4)]
        self.adapters: dict[str, Adapter] = {}
        self.states: dict[str, tuple[State, dict[str, Any]]] = {}
        self.num_made = 0
        self.holder = self

    def get_server_capabilities(self) -> Any:
        model = SimpleNamespace(model_name=self.base_model)
        return SimpleNamespace(supported_models=[model])

    def create_lora_training_client(self, base_model: str, rank: int, seed: int) -> "Adapter":
        adapter = Adapter(self)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.parameters.items():
            is_a = ".lora_A." in name
            drawn = torch.randn(parameter.shape, generator=generator) / rank
            adapter.weights[name] = drawn if is_a else torch.zeros_like(parameter)
        return adapter

    def create_training_client_from_state(self, path: str) -> "Adapter":
        adapter = Adapter(self)
        adapter.weights = dict(self.states[path][0])
        return adapter

    def create_training_client_from_state_with_optimizer(self, path: str) -> "Adapter":
        adapter = self.create_training_client_from_state(path)
        adapter.optimizer = dict(self.states[path][1])
        return adapter

    def unload(self, model_id: str) -> None:
        self.adapters.pop(model_id, None)


class Adapter:
    """A training client; sampler and trainer share its weights."""

    def __init__(self, server: StandIn) -> None:
        taken = {adapter.place for adapter in server.adapters.values()}
        free = [number for number in range(len(server.places)) if number not in taken]
        if not free:
            raise ValueError("Maximum number of LoRA adapters reached")
        self.server = server
        self.place = free[0]
        server.num_made += 1
        self.model_id = f"model_{server.num_made}"
        server.adapters[self.model_id] = self
        self.weights: State = {}
        self.optimizer: dict[str, Any] = {"step": 0}
        self.sampled_last: Any = None

    def _guaranteed_model_id(self) -> str:
        return self.model_id

    def _act(self) -> None:
        with torch.no_grad():
            for name, parameter in self.server.parameters.items():
                parameter.copy_(self.weights[name])

    def forward(self, rows: Sequence[types.Datum], loss: str, config: Any = None) -> "Future[Any]":
        with torch.no_grad():
            return done(self._pass(rows, loss, config)[1])

    def forward_backward(
        self, rows: Sequence[types.Datum], loss: str, config: Any = None
    ) -> "Future[Any]":
        for parameter in self.server.parameters.values():
            parameter.grad = None
        total, output = self._pass(rows, loss, config)
        total.backward()  # type: ignore[no-untyped-call]
        place = self.server.places[self.place]
        for name, parameter in self.server.parameters.items():
            assert parameter.grad is not None
            left = place.gradient.get(name, torch.zeros_like(parameter))
            place.gradient[name] = left + parameter.grad
        place.num_rows += len(rows)
        return done(output)

    def _pass(self, rows: Sequence[types.Datum], loss: str, config: Any) -> tuple[Tensor, Any]:
        self._act()
        total = torch.zeros(())
        outputs = []
        for row in rows:
            inputs = {name: data.to_torch() for name, data in row.loss_fn_inputs.items()}
            ids = torch.tensor([row.model_input.to_ints()])
            logits = self.server.model(input_ids=ids, use_cache=False).logits[0]
            targets = inputs["target_tokens"]
            logps = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
            weights = inputs.get("weights", torch.ones(len(targets)))
            losses = -weights * LOSSES[loss](logps, inputs, config or {})
            row_loss = losses.sum()
            if self.server.reduction == "mean":
                row_loss = row_loss / weights.sum().clamp(min=1e-9)
            total = total + row_loss
            outputs.append(
                {
                    "logprobs": types.TensorData.from_torch(logps.detach()),
                    "elementwise_loss": types.TensorData.from_torch(losses.detach()),
                }
            )
        return total, SimpleNamespace(loss_fn_outputs=outputs, metrics={})

    def optim_step(self, adam: types.AdamParams) -> "Future[Any]":
        assert adam.weight_decay == 0
        place = self.server.places[self.place]
        divisor = max(1, place.num_rows) if self.server.reduction == "mean" else 1
        square = 0.0
        self.optimizer = dict(self.optimizer, step=self.optimizer["step"] + 1)
        step = self.optimizer["step"]
        for name, parameter in self.server.parameters.items():
            gradient = place.gradient.get(name, torch.zeros_like(parameter)) / divisor
            square += float((gradient**2).sum())
            first, second = self.optimizer.get(name, (torch.zeros(()), torch.zeros(())))
            first = adam.beta1 * first + (1 - adam.beta1) * gradient
            second = adam.beta2 * second + (1 - adam.beta2) * gradient**2
            self.optimizer[name] = (first, second)
            root = (second / (1 - adam.beta2**step)).sqrt() + adam.eps
            update = first / (1 - adam.beta1**step) / root
            self.weights[name] = self.weights[name] - adam.learning_rate * update
        self.server.places[self.place] = Place()
        metrics = {"skyrl.ai/grad_norm": square**0.5}
        return done(SimpleNamespace(metrics=metrics))

    def save_state(self, name: str) -> "Future[Any]":
        path = f"tinker://{self.model_id}/weights/{name}"
        if path in self.server.states:
            return failed(ValueError(f"409: {path} exists"))
        self.server.states[path] = (dict(self.weights), dict(self.optimizer))
        return done(SimpleNamespace(path=path))

    def save_weights_and_get_sampling_client(self) -> "Sampling":
        return Sampling(self, dict(self.weights))


@dataclass(eq=False)
class Sampling:
    """A sampling client. An older one that samples puts its weights back over the trained ones."""

    adapter: Adapter
    weights: State

    def sample(
        self, prompt: types.ModelInput, num_samples: int, parameters: types.SamplingParams
    ) -> "Future[Any]":
        adapter = self.adapter
        if adapter.sampled_last is not self:
            adapter.weights = dict(self.weights)
            adapter.sampled_last = self
        adapter._act()
        assert parameters.max_tokens is not None and parameters.seed is not None
        if not 0 <= parameters.seed < 2**31:
            return failed(ValueError("500: the seed does not fit 32 bits"))
        stops = list(parameters.stop or ())
        generator = torch.Generator().manual_seed(parameters.seed)
        ids = list(prompt.to_ints())
        tokens: list[int] = []
        logps: list[float] = []
        with torch.no_grad():
            while len(tokens) < parameters.max_tokens and not (tokens and tokens[-1] in stops):
                logits = adapter.server.model(input_ids=torch.tensor([ids + tokens])).logits[0, -1]
                token = _draw(logits, parameters, generator)
                tokens.append(token)
                logps.append(float(logits.log_softmax(-1)[token]))  # raw, at any temperature
        reason = "stop" if tokens[-1] in stops else "length"
        sequence = types.SampledSequence(reason, _tokens_list=tokens, _logprobs_list=logps)  # type: ignore[arg-type]
        return done(SimpleNamespace(sequences=[sequence]))


def _draw(logits: Tensor, parameters: types.SamplingParams, generator: torch.Generator) -> int:
    if parameters.temperature == 0:
        return int(logits.argmax())
    scaled = logits / parameters.temperature
    if parameters.top_k > 0:
        smallest = scaled.topk(parameters.top_k).values[-1]
        scaled = scaled.masked_fill(scaled < smallest, float("-inf"))
    return int(torch.multinomial(scaled.softmax(-1), 1, generator=generator))


Objective = Callable[[Tensor, dict[str, Tensor], dict[str, float]], Tensor]


def _cross_entropy(logps: Tensor, inputs: dict[str, Tensor], _: dict[str, float]) -> Tensor:
    return logps


def _importance_sampling(logps: Tensor, inputs: dict[str, Tensor], _: dict[str, float]) -> Tensor:
    return (logps - inputs["logprobs"]).exp() * inputs["advantages"]


def _ppo(logps: Tensor, inputs: dict[str, Tensor], config: dict[str, float]) -> Tensor:
    ratio = (logps - inputs["logprobs"]).exp()
    low = config.get("clip_low_threshold", 0.8)
    high = config.get("clip_high_threshold", 1.2)
    return (ratio * inputs["advantages"]).minimum(ratio.clamp(low, high) * inputs["advantages"])


LOSSES: dict[str, Objective] = {
    "cross_entropy": _cross_entropy,
    "importance_sampling": _importance_sampling,
    "ppo": _ppo,
}
