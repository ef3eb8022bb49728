"""The `deepspeed` trainer (ZeRO, Rajbhandari et al. 2020): keys and configuration."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from omegaconf import OmegaConf
from pydantic import Field, field_validator, model_validator

from debate_train.losses import Loss
from debate_train.models.loaded_model import LoadedModel
from debate_train.trainers.trainer import Sharding, TrainerSettings, bucket_size

if TYPE_CHECKING:
    from debate_train.trainers.deepspeed_worker import DeepSpeedSession


# Settings of DeepSpeed that follow from the recipe's other keys, or that results depend on.
_RESERVED_SETTINGS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "managed_gradient_accumulation",
    "optimizer",
    "scheduler",
    "fp16",
    "bf16.enabled",
    "zero_optimization.stage",
    "zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_param.device",
    # Further copies of parameters, which the values of a KL reference would not reach.
    "zero_optimization.zero_hpz_partition_size",
    "zero_optimization.mics_shard_size",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
)


class DeepSpeedTrainer(TrainerSettings):
    """DeepSpeed in a single process or several."""

    several_processes: ClassVar[bool] = True
    widens_adapters: ClassVar[bool] = False
    adapters_at_once: ClassVar[int] = 1

    type: Literal["deepspeed"] = "deepspeed"
    zero_stage: Literal[0, 1, 2, 3] = 2
    """What is sharded: nothing (0), optimizer state (1), gradients too (2), parameters too (3)."""
    offload_optimizer: bool = False
    """Keep optimizer state in CPU memory, from stage 1 on."""
    offload_params: bool = False
    """Keep parameters in CPU memory, at stage 3."""
    bf16: bool = False
    """Train in bfloat16 with float32 master weights, as a model in bfloat16 needs; from stage 1."""
    deepspeed_args: dict[str, Any] = Field(default_factory=dict)
    """Further settings of DeepSpeed's configuration, such as `zero_optimization`'s buckets."""

    def open(self, loaded: LoadedModel, loss: Loss, total_steps: int) -> "DeepSpeedSession":
        """Open DeepSpeed's engine in every process of the run."""
        from debate_train.trainers.deepspeed_worker import DeepSpeedSession

        return DeepSpeedSession(self, loaded, loss, total_steps)

    @property
    def keeps_masters(self) -> bool:
        """The same as `bf16`."""
        return self.bf16

    def sharding(self) -> Sharding:
        """Describe the ZeRO stage and the offloads."""
        return Sharding(
            stage=self.zero_stage,
            offload_optimizer=self.offload_optimizer,
            offload_params=self.offload_params,
        )

    @field_validator("deepspeed_args")
    @classmethod
    def _settings_are_free(cls, settings: dict[str, object]) -> dict[str, object]:
        reserved = [name for name in _RESERVED_SETTINGS if _has_setting(settings, name)]
        if reserved:
            raise ValueError(
                f"found {', '.join(reserved)}, which follow from other keys of the recipe; "
                "expected settings that change speed and memory only"
            )
        return settings

    @model_validator(mode="after")
    def _stage_can(self) -> "DeepSpeedTrainer":
        # Each needs the stage that shards what it offloads or keeps in float32.
        least_stages = {
            "bf16": (self.bf16, 1),
            "offload_optimizer": (self.offload_optimizer, 1),
            "offload_params": (self.offload_params, 3),
        }
        for key, (is_set, stage) in least_stages.items():
            if is_set and self.zero_stage < stage:
                raise ValueError(
                    f"{key}: found true with zero_stage {self.zero_stage}; expected zero_stage "
                    f"{stage} or above"
                )
        if self.zero_stage and self.optimizer.needs_whole:
            raise ValueError(
                f"optimizer: found {self.optimizer.label} with zero_stage {self.zero_stage}, which "
                "cuts parameters up; expected zero_stage 0, or an optimizer such as adamw"
            )
        return self

    def type_problem(self, dtypes: Collection[str]) -> str | None:
        """Explain why weights of these types cannot be trained: they lack float32 masters."""
        narrow = {*dtypes} - {"float32"}
        # In half precision without masters, small updates round to nothing. float16 would also
        # need loss scaling, which is not offered.
        if "float16" not in narrow and (not narrow or self.bf16):
            return None
        return (
            f"trainer.bf16: found {str(self.bf16).lower()} with a model in {sorted(narrow)[0]}; "
            "expected bf16: true with model.dtype: bfloat16, or model.dtype: float32"
        )

    def deepspeed_config(self) -> dict[str, object]:
        """Build the configuration as DeepSpeed reads it."""
        zero: dict[str, object] = {"stage": self.zero_stage}
        if self.offload_optimizer:
            zero["offload_optimizer"] = {"device": "cpu"}
        if self.offload_params:
            zero["offload_param"] = {"device": "cpu"}
        reserved = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            # At stage 0 DeepSpeed clips without reporting the norm; the worker does both.
            "gradient_clipping": self.max_grad_norm if self.zero_stage else 0.0,
            # Micro-batches vary in number: backward is called for each, step once.
            "managed_gradient_accumulation": False,
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "bf16": {"enabled": self.bf16},
            "steps_per_print": 10**9,
        }
        return _merge(self.deepspeed_args, reserved)


def with_bucket(settings: Mapping[str, object], trained: int) -> dict[str, object]:
    """Bound the buffer of gradients by the trained parameters, unless the settings set the size."""
    default = {"zero_optimization": {"reduce_bucket_size": bucket_size(trained)}}
    return _merge(default, settings)


def _has_setting(settings: Mapping[str, object], name: str) -> bool:
    first, _, rest = name.partition(".")
    if first not in settings:
        return False
    nested = settings[first]
    # A scalar in place of a mapping would replace all settings below it.
    return not rest or not isinstance(nested, Mapping) or _has_setting(nested, rest)


def _merge(defaults: Mapping[str, object], overrides: Mapping[str, object]) -> dict[str, object]:
    merged = OmegaConf.merge(dict(defaults), dict(overrides))
    return cast(dict[str, object], OmegaConf.to_container(merged))
