"""A policy on a server: created, saved, restored and sampled from."""

import hashlib
import io
import json
import secrets
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import tinker
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save_file
from tinker import types

from debate_rollout.engine import Weights
from debate_rollout.engines.tinker import CALL_TIMEOUT_S, SERVED, ServedAdapter, Usage, connect
from debate_train.errors import ModelError, RecipeError, RunFailure
from debate_train.models import ModelConfig
from debate_train.models.loaded_model import LoadedModel, Lora, lora_config
from debate_train.trainers.tinker_probe import probe
from debate_train.trainers.tinker_rows import Reduction

if TYPE_CHECKING:
    from tinker import ServiceClient, TrainingClient
    from torch import Tensor

    from debate_train.trainers.tinker import TinkerTrainer


STATE_FILE = "tinker.json"
"""In a checkpoint: where the server keeps the adapter and its optimizer."""
_STATE_KEYS = {"path", "base_model", "rank", "model_id"}
_CALL_ERRORS = (tinker.TinkerError, OSError, ValueError)


class TinkerPolicy:
    """An adapter on a server, in the place of the weights of a `LoadedModel`.

    No client can be set back: to restore a state makes a new client, and gives the place of the
    old one free.
    """

    def __init__(
        self, config: "TinkerTrainer", base_models: tuple[str, ...], lora: Lora, seed: int
    ) -> None:
        self.config = config
        self._lora = lora
        self.usage = Usage()
        self.path: str | None = None
        """The present client's first state on the server, None for a new adapter."""
        self.has_moments = False
        """Whether the optimizer has a state."""
        self._base_models = base_models
        self._rank = lora.rank
        self._seed = seed
        # Names of states can be used once, so a resumed run needs others.
        self._token = secrets.token_hex(4)
        self._num_names = 0
        self._service: ServiceClient | None = None
        self._base_model: str | None = None
        self._client: TrainingClient | None = None
        self._served: ServedAdapter | None = None
        self._reduction: Reduction | None = None

    @classmethod
    def of(cls, config: "TinkerTrainer", model: ModelConfig, seed: int) -> LoadedModel:
        """Build the model of a run without weights in this process."""
        lora = model.lora
        if lora is None:  # A recipe without an adapter was refused before.
            raise RecipeError("model.lora: found null; expected {rank: 16, alpha: 32}")
        shapes = model.model_copy(update={"lora": None}).load(seed, with_values=False)
        policy = cls(config, config.base_names(model), lora, seed)
        return replace(shapes, lora=lora, remote=policy)

    def prints(self) -> dict[str, str]:
        """Hash the name of the base, the rank and the seed; a server shows no weights."""
        frozen = hashlib.sha256(self.base_model.encode()).hexdigest()
        start = hashlib.sha256(f"{frozen} {self._rank} {self._seed}".encode()).hexdigest()
        return {"start": start, "frozen": frozen}

    @property
    def service(self) -> "ServiceClient":
        """The client of the server, shared by engine and trainer."""
        if self._service is None:
            self._service = connect(self.config.base_url)
        return self._service

    @property
    def base_model(self) -> str:
        """The server's name of the model.

        Raises:
            RecipeError: The server has another model; some would train it without a message.
        """
        if self._base_model is None:
            with self.calling("get_server_capabilities"):
                capabilities = self.service.get_server_capabilities()
            served = [model.model_name for model in capabilities.supported_models]
            names = [name for name in self._base_models if name in served]
            if not names:
                raise RecipeError(
                    f"trainer.base_model: found {self._base_models[-1]}, which the server does not "
                    f"have; expected one of {', '.join(filter(None, served))}"
                )
            self._base_model = names[0]
        return self._base_model

    @property
    def client(self) -> "TrainingClient":
        """The adapter's client, created at first use."""
        if self._client is None:
            self._probe()
            with self.calling("create"):
                self._client = self._new_adapter()
        return self._client

    @property
    def reduction(self) -> Reduction:
        """How the server adds up losses."""
        return self._probe()

    def _probe(self) -> Reduction:
        # Before the policy's adapter: it takes the place that the probe has cleared.
        if self._reduction is None:
            with self.calling("probe"):
                adapter = self._new_adapter()
                self._reduction = probe(self.config, adapter)
            self.unload(adapter._guaranteed_model_id())
        return self._reduction

    def _new_adapter(self) -> "TrainingClient":
        return self.service.create_lora_training_client(
            base_model=self.base_model, rank=self._rank, seed=self._seed
        )

    def updated(self) -> None:
        """Note an update: sampling clients of earlier weights must not be used again."""
        self.has_moments = True
        self._served = None

    def export(self, version: int) -> Weights:
        """Make a sampling client of the present weights; one at a time, and none of older ones."""
        # Each save stays on the server's disk, so unchanged weights are saved once.
        if self._served is None:
            with self.calling("save_weights_and_get_sampling_client"):
                sampling = self.client.save_weights_and_get_sampling_client()
            self._served = ServedAdapter(sampling, self.usage)
        return Weights(version, {SERVED: self._served}, "lora")

    def save(self, directory: Path) -> None:
        """Save the adapter and its optimizer on the server, and their path in a checkpoint."""
        path = self._save_state()
        content = {
            "path": path,
            "base_model": self.base_model,
            "rank": self._rank,
            "model_id": self.client._guaranteed_model_id(),
        }
        (directory / STATE_FILE).write_text(json.dumps(content, indent=1), encoding="utf-8")
        self._write_adapter(directory)

    def _write_adapter(self, directory: Path) -> None:
        """Write the adapter as peft reads it; the server's own file names no target modules."""
        tensors = self.download()
        # `model.layers.0.mlp.up_proj.lora_A.weight` is of module `up_proj`.
        modules = {name.partition(".lora_")[0].rpartition(".")[2] for name in tensors}
        config = lora_config(self._lora).to_dict()
        config |= {
            "base_model_name_or_path": self._base_models[0],
            "target_modules": sorted(modules),
            "inference_mode": True,
        }
        text = json.dumps(config, indent=2, sort_keys=True, default=str)
        (directory / "adapter_config.json").write_text(text, encoding="utf-8")
        save_file(tensors, directory / "adapter_model.safetensors")

    def download(self) -> "dict[str, Tensor]":
        """Read the present adapter from the server, under peft's names."""
        with self.calling("download the adapter"):
            future = self.client.save_weights_for_sampler(self._new_name())
            path = str(future.result(timeout=CALL_TIMEOUT_S).path)
            # Servers write paths of several forms, and the client parses one of them.
            run_id, *_, name = path.removeprefix("tinker://").split("/")
            rest = self.service.create_rest_client()
            url = rest.get_checkpoint_archive_url(run_id, name).result().url
            if urlsplit(url).scheme not in ("http", "https"):
                raise ValueError(f"found {url}; expected an address to download from")
            with urlopen(url, timeout=CALL_TIMEOUT_S) as response:
                archive = response.read()
        return _tensors_of(archive)

    def load(self, directory: Path) -> None:
        """Restore the adapter and its optimizer from the path in a checkpoint.

        Raises:
            ModelError: The checkpoint is of another trainer, base or rank.
        """
        content = _read_state(directory / STATE_FILE)
        expected = (self.base_model, self._rank)
        if (content["base_model"], content["rank"]) != expected:
            raise ModelError(
                f"{directory / STATE_FILE}: found an adapter of {content['base_model']}, rank "
                f"{content['rank']}; expected one of {self.base_model}, rank {self._rank}"
            )
        if self._client is None:
            # A killed run keeps its place for minutes, and rounding differs between places.
            self.unload(content["model_id"])
        if content["path"] != self.path or self._client is None:
            self._restore(content["path"], with_optimizer=True)

    def restart_optimizer(self) -> None:
        """Go on from the present weights with a new optimizer, as each phase does."""
        if self.has_moments:
            self._restore(self._save_state(), with_optimizer=False)

    def _new_name(self) -> str:
        self._num_names += 1
        # Letters, digits and hyphens alone: other characters are refused.
        return f"{self._token}-{self._num_names:06d}"

    def _save_state(self) -> str:
        with self.calling("save_state"):
            path = self.client.save_state(self._new_name()).result(timeout=CALL_TIMEOUT_S).path
        return str(path)

    def _restore(self, path: str, *, with_optimizer: bool) -> None:
        self.leave()
        self._probe()
        with self.calling(f"restore {path}"):
            create = self.service.create_training_client_from_state
            if with_optimizer:
                create = self.service.create_training_client_from_state_with_optimizer
            self._client = create(path)
        self.path = path
        self.has_moments = with_optimizer

    def unload(self, model_id: str) -> None:
        """Give the place of an adapter free, before the program ends."""
        from tinker.lib.api_future_impl import _APIFuture
        from tinker.lib.client_connection_pool_type import ClientConnectionPoolType

        holder = self.service.holder

        async def unload() -> None:
            request = types.UnloadModelRequest(model_id=model_id)
            with holder.aclient(ClientConnectionPoolType.TRAIN) as http_client:
                future = await http_client.models.unload(request=request, max_retries=0)
            await _APIFuture(
                types.UnloadModelResponse,
                holder,
                future,
                request_start_time=0.0,
                request_type="UnloadModel",
            ).result_async()

        # A place that stays taken is no fault of the run.
        with suppress(*_CALL_ERRORS):
            holder.run_coroutine_threadsafe(unload()).result(timeout=60.0)

    def leave(self) -> None:
        """Give the place of the policy's adapter free."""
        if self._client is not None:
            self.unload(self._client._guaranteed_model_id())
        self._client = None
        self._served = None

    @contextmanager
    def calling(self, what: str) -> Iterator[None]:
        """Name the server and the call in errors.

        Raises:
            RunFailure: The server refuses the call, or gives no answer.
        """
        try:
            yield
        except _CALL_ERRORS as error:
            raise RunFailure(f"{self.config.base_url}: {what}: {error}") from error


def _read_state(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
        is_whole = isinstance(content, Mapping) and content.keys() >= _STATE_KEYS
    except (OSError, ValueError):
        is_whole = False
    if not is_whole:
        raise ModelError(
            f"{file}: found no path of a server's state; expected a checkpoint of trainer tinker"
        )
    return dict(content)


def _tensors_of(archive: bytes) -> "dict[str, Tensor]":
    """Read an adapter's tensors, and no other file, from a server's archive."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            for member in files:
                if Path(member.name).name == "adapter_model.safetensors" and member.isfile():
                    content = files.extractfile(member)
                    assert content is not None
                    return read_tensors(content.read())
    except (tarfile.TarError, SafetensorError) as error:
        raise RunFailure(f"the server's archive of an adapter cannot be read: {error}") from error
    raise RunFailure("the server's archive of an adapter has no adapter_model.safetensors")
