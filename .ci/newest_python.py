"""Run the suites of protocol, rewards and rollout on the newest Python that there is.

The environment is `.venv-newest`. What needs torch is left out, with the reason, where no wheel
of it without CUDA is to be had for that Python.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST, NEWEST = 11, 16
FOLDER = ".venv-newest"
USABLE = "import sys; print(sys.version_info[1] if sys.version_info[3] == 'final' else 0)"
PACKAGES = ("debate-protocol", "debate-rewards[math]", "debate-rollout[openai]")
TOOLS = (
    "hypothesis>=6.150",
    "pytest>=8.4",
    "pytest-timeout>=2.4",
    "pytest-xdist>=3.8",
    "pyyaml>=6",
)
TORCH = ("torch==2.13.0", "transformers==5.19.0", "peft==0.21.2")
SUITES = ("tests/protocol", "tests/rewards", "tests/rollout")


def newest() -> tuple[int, str]:
    """Return minor version and path of the newest release on PATH, or beside this Python."""
    for minor in range(NEWEST, OLDEST - 1, -1):
        name = f"python3.{minor}"
        beside = Path(sys.base_prefix).parent.glob(f"*/bin/{name}")
        for path in filter(None, (shutil.which(name), *map(str, beside))):
            asked = subprocess.run(
                [path, "-c", USABLE], capture_output=True, text=True, check=False
            )
            if asked.returncode == 0 and asked.stdout.strip() == str(minor):
                return minor, path
    return sys.version_info[1], sys.executable


def main(arguments: list[str]) -> int:
    """Make the environment and run pytest in it; return its exit status."""
    minor, path = newest()
    if minor == sys.version_info[1]:
        print(f"== newest Python: 3.{minor}, on which `make test` runs; nothing newer is on PATH")
        return 0
    print(f"== newest Python: 3.{minor} ({path}) into {FOLDER}/", flush=True)
    uv, python = os.environ["UV"], f"{FOLDER}/bin/python"
    install = [uv, "pip", "install", "--quiet", "--python", python]
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", path, FOLDER], check=True)
    editable = [part for name in PACKAGES for part in ("-e", f"packages/{name}")]
    subprocess.run([*install, *editable, *TOOLS], check=True)
    impatient = {"UV_HTTP_TIMEOUT": "20", "UV_HTTP_RETRIES": "0"}
    tried = subprocess.run(
        [*install, "--torch-backend", "cpu", *TORCH],
        env=os.environ | impatient,
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        reason = " ".join(tried.stderr.split())[:300]
        print(f"== what needs torch is left out: no CPU wheel for 3.{minor}: {reason}", flush=True)
    marks = "not gpu and not vllm and not slow"
    command = [python, "-m", "pytest", "-q", "-m", marks, "-p", "no:cacheprovider", *SUITES]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *arguments], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
