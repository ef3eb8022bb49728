"""vLLM inside this process, or as a server that the run starts or connects to."""

from debate_rollout.engines.vllm.refresh_errors import OLD_WEIGHTS_SERVE as OLD_WEIGHTS_SERVE
from debate_rollout.engines.vllm.refresh_errors import refresh_error as refresh_error
from debate_rollout.engines.vllm.settings import BACKEND as BACKEND
from debate_rollout.engines.vllm.settings import BATCH_INVARIANT as BATCH_INVARIANT
from debate_rollout.engines.vllm.settings import LOWEST_TEMPERATURE as LOWEST_TEMPERATURE
from debate_rollout.engines.vllm.settings import VllmEngine as VllmEngine
from debate_rollout.engines.vllm.settings import VllmServerEngine as VllmServerEngine
from debate_rollout.engines.vllm.settings import VllmSettings as VllmSettings
from debate_rollout.engines.vllm.settings import on_cpu as on_cpu
from debate_rollout.engines.vllm.settings import serving_arguments as serving_arguments
