"""Collects transcripts from endpoints that misbehave, and counts what goes wrong.

    python -m benchmarks.robustness.mutate_endpoints [--trials 3] [--state runs/endpoints.jsonl]

Each trial is one behaviour of `hostile_endpoint.py` with its own random numbers, from `--seed`.
The command of the package runs in this process against it. A trial is a failure when it

- ends in a traceback, or with another exit code than 0, 1 or 2,
- takes more than 20 seconds,
- takes more than 300 MB of memory beyond what was taken before, or
- leaves a part of the key in what is printed or kept.

With `--state` each trial is written as it ends, and those already there are not made again.
"""

import argparse
import base64
import contextlib
import io
import json
import logging
import os
import random
import re
import resource
import signal
import string
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.measurement import print_line
from benchmarks.robustness.hostile_endpoint import (
    GOOD,
    Behaviour,
    behaviours,
    completion,
    echoes,
    response,
    serving,
)
from debate_train.commands.rollout import main as collect

RECIPE = """\
name: t
steps: 1
model: {{name: org/some-model}}
data: {{type: signs_puzzle, batch_size: 2}}
debate: {{num_agents: 2, max_rounds: 2, style: compact}}
rollout:
  max_tokens: 16
  driver: {{type: {driver}}}
  engine:
    {{type: openai, base_url: "{url}", api_key_env: A_KEY, retries: 1, backoff_s: 0,
     timeout_s: 1.5}}
reward: {{type: win_rate}}
loss: {{type: sft}}
"""
LONGEST_S, MOST_BYTES = 20.0, 300e6
KEY = "sk-Zq7Rk2Wm9Xv4Tb6Yc1Nd8Hf3Jg5Lp0"
KINDS = ("traceback", "exit code", "hang", "memory", "leak")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}")


class Hang(BaseException):
    """Raised in the command when it takes too long."""


def main() -> None:
    """Make the trials and print their counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=3, help="of each behaviour")
    parser.add_argument("--state", type=Path, help="file of trials that are done")
    parser.add_argument("--only", default="", help="behaviours whose name holds this")
    arguments = parser.parse_args()
    signal.signal(signal.SIGALRM, _too_long)
    done = _read_state(arguments.state)
    chosen = {k: v for k, v in behaviours().items() if arguments.only in k}
    # What is imported once counts for no trial, and the key is found where nothing blanks it.
    sane = _trial(lambda rng, key: iter((response(completion(GOOD)),)), {}, 10 * LONGEST_S)
    assert sane["code"] == 0 and not sane["failures"], sane
    assert all(_leaks(f"x{echo}y", KEY) for echo in echoes(KEY).values())
    found: list[dict[str, Any]] = []
    for trial in range(arguments.trials):
        for name, behaviour in chosen.items():
            where = {"seed": arguments.seed, "behaviour": name, "trial": trial}
            one = done.get(json.dumps(where)) or where | _trial(behaviour, where)
            if "hang" in one["failures"]:  # A machine may stand still for a while; twice it is us.
                one = where | _trial(behaviour, where)
            found.append(one)
            if arguments.state is not None and json.dumps(where) not in done:
                with arguments.state.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(one) + "\n")
            if one["failures"]:
                print(json.dumps(one), file=sys.stderr)
    counts = Counter(kind for one in found for kind in one["failures"])
    settings = {
        "seed": arguments.seed,
        "behaviours": len(chosen),
        "trials": len(found),
        "exit_codes": dict(sorted(Counter(str(one["code"]) for one in found).items())),
        "longest_s": max(one["seconds"] for one in found),
    } | {kind: counts[kind] for kind in KINDS}
    print_line("mutate_endpoints", [sum(counts.values())], "failures", "lower", settings, ["httpx"])
    sys.exit(1 if counts else 0)


def _read_state(path: Path | None) -> dict[str, dict[str, Any]]:
    if path is None or not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    return {
        json.dumps({key: one[key] for key in ("seed", "behaviour", "trial")}): one
        for one in map(json.loads, lines)
    }


def _trial(
    behaviour: Behaviour, where: dict[str, Any], longest_s: float = LONGEST_S
) -> dict[str, Any]:
    """Run the command once; return its exit code, seconds and failures."""
    rng = random.Random(json.dumps(where))
    letters = string.ascii_letters + string.digits
    key = "sk-" + "".join(rng.choices(letters, k=rng.randint(20, 120)))
    os.environ["A_KEY"] = key
    driver = rng.choice(("free_running", "lock_step"))
    printed = io.StringIO()
    log = logging.StreamHandler(printed)
    logging.getLogger().addHandler(log)
    began, memory = time.monotonic(), _memory()
    with tempfile.TemporaryDirectory() as folder, serving(behaviour, rng, key) as url:
        recipe, output = Path(folder) / "r.yaml", Path(folder) / "out"
        recipe.write_text(RECIPE.format(url=url, driver=driver), encoding="utf-8")
        signal.setitimer(signal.ITIMER_REAL, longest_s)
        code: Any = "exception"
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                code = collect([str(recipe), f"--output={output}"])
        except Hang:
            code = "hang"
        except BaseException:
            printed.write(traceback.format_exc())
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            logging.getLogger().removeHandler(log)
        kept = [path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()]
    text = printed.getvalue() + b"\n".join(kept).decode("utf-8", "replace")
    failures = {
        "traceback": "Traceback (most recent call last)" in text or code == "exception",
        "exit code": code not in (0, 1, 2, "hang", "exception"),
        "hang": code == "hang" or time.monotonic() - began > longest_s,
        "memory": bool(where) and _memory() - memory > MOST_BYTES,
        "leak": _leaks(text, key),
    }
    return {
        "code": code,
        "seconds": round(time.monotonic() - began, 2),
        "failures": [kind for kind, failed in failures.items() if failed],
        "said": printed.getvalue().strip()[-200:],
    }


def _leaks(text: str, key: str) -> bool:
    """Return whether eight characters of the key in a row, in some spelling, are in the text.

    Written without a look at how the engine blanks them.
    """
    secret = key[3:]
    if any(secret[k : k + 8] in text for k in range(len(secret) - 7)):
        return True
    letters = re.sub("[^0-9a-z]", "", text.lower())
    codes = [ord(c) for c in secret]
    spelled = (secret.encode().hex(), "".join(map(str, codes)), "".join(f"u{c:04x}" for c in codes))
    for way in (secret, secret[::-1], *spelled):
        size = 12 if way.lower() in (secret.lower(), secret[::-1].lower()) else 24
        low = way.lower()
        if any(low[k : k + size] in letters for k in range(len(low) - size + 1)):
            return True
    parts = [secret[k : k + 8].encode() for k in range(len(secret) - 7)]
    for found in _BASE64.findall(text):
        for skip in range(4):
            chunk = found[skip:].replace("-", "+").replace("_", "/")
            decoded = base64.b64decode(chunk[: len(chunk) // 4 * 4])
            if any(part in decoded for part in parts):
                return True
    return False


def _memory() -> float:
    """Return the most bytes that this process has taken so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def _too_long(*_: object) -> None:
    raise Hang


if __name__ == "__main__":
    main()
