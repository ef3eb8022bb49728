"""Run the numeric tests under several arithmetics of this processor; `make test-arithmetics`.

Kernels of torch differ by the vector instructions they use, and those of MKL by its code path:
each rounds sums in an order of its own. All other tests run under the best that the processor has.
"""

import os
import subprocess
import sys
import time

NAME = "import torch; print(torch.backends.cpu.get_cpu_capability())"
ARITHMETICS = (
    {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"},
    {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "OMP_NUM_THREADS": "1"},
    {"OMP_NUM_THREADS": "2"},
)
OWN = {name for arithmetic in ARITHMETICS for name in arithmetic}


def main(arguments: list[str]) -> int:
    """Run pytest once for each arithmetic; return 1 when one of them failed."""
    clean = {name: value for name, value in os.environ.items() if name not in OWN}
    # Asked without a wish: torch believes one that the processor cannot fulfil, and crashes.
    asked = [sys.executable, "-c", NAME]
    done = subprocess.run(asked, env=clean, capture_output=True, text=True, check=True)
    best, failed = done.stdout.strip(), []
    for arithmetic in ARITHMETICS:
        environment = clean | arithmetic
        said = " ".join(f"{name}={value}" for name, value in arithmetic.items())
        if arithmetic.get("ATEN_CPU_CAPABILITY") == "avx2" and best != "AVX512":
            print(f"== arithmetic {said}: left out, this processor has {best}", flush=True)
            continue
        print(f"== arithmetic {said}", flush=True)
        begin = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "-m", "numeric"]
        command += arguments
        if arithmetic["OMP_NUM_THREADS"] != "1":  # Threads wait for each other on busy cores.
            command += ["-n", "0"]
        if subprocess.run(command, env=environment, check=False).returncode:
            failed.append(said)
        print(f"== arithmetic {said}: {time.monotonic() - begin:.0f} s", flush=True)
    for said in failed:
        print(f"== FAILED under {said}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
