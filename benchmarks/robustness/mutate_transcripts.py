"""Run every command that reads transcripts on hostile ones, in this process, and count what fails.

A case is one file of transcripts, JSON Lines or XML: sound debates of every form with a few
mutations of values, keys, texts or bytes. It goes through `debate-protocol validate`, `show` and
`export`, `debate-rewards score` (each reward in turn) and `stats`, and into the report of a run
whose metrics and results are mutated too; its answers go through `debate-rewards verify`. Wrong are

- `traceback`: an exception, or an exit code other than 0, 1 and 2
- `slow`: a command above 20 s
- `raw`: output that a terminal would act on
- `lost`: an export that does not read back equal
- `silent`: a refusal without a word

Case k of a seed is always the same. Results are appended to `--state`, and a later call with the
same file goes on after the cases that stand there. Prints one JSON line of counts.

    python -m benchmarks.robustness.mutate_transcripts --cases 2100 --state runs/hostile.jsonl
"""

import argparse
import contextlib
import io
import json
import random
import re
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.robustness.transcript_mutations import answers_file, debates_file, run_files
from debate_protocol import Question, from_xml, read_transcripts
from debate_protocol.cli import main as protocol_main
from debate_report import report_main
from debate_rewards import REWARDS, check
from debate_rewards import estimates as intervals
from debate_rewards.cli import main as rewards_main

LIMIT_S = 20
FAILURES = ("traceback", "slow", "raw", "lost", "silent")
_RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_SETTINGS = {
    "overlong": ["max_tokens=64", "buffer=16"],
    "mixed": [
        "components.a.reward.type=v2",
        "components.a.weight=1",
        "components.b.reward.type=verifiable",
        "components.b.weight=0.5",
    ],
}


class TooSlowError(BaseException):
    """A command took longer than the limit; no exception that a command may catch."""


class Outcome:
    """What one command did."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.problem = ""
        self.seconds = 0.0
        self.out = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", newline="")
        self.err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", newline="")

    def texts(self) -> tuple[bytes, bytes]:
        """Return what was written to standard output and error."""
        return tuple(s.buffer.getvalue() for s in (self.out, self.err))  # type: ignore[attr-defined]


def run(main: Callable[[list[str]], int], arguments: list[str]) -> Outcome:
    """Run a command in this process, with a limit on its time."""
    outcome = Outcome()
    started = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        with contextlib.redirect_stdout(outcome.out), contextlib.redirect_stderr(outcome.err):
            outcome.code = main(arguments)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except TooSlowError:
        outcome.problem = "slow"
    except (Exception, SystemExit) as error:
        outcome.problem = f"traceback: {type(error).__name__}: {error}"[:300]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    outcome.seconds = time.perf_counter() - started
    outcome.out.flush()
    outcome.err.flush()
    return outcome


def failure(outcome: Outcome, lost: Callable[[bytes], bool] | None) -> str:
    """Return what is wrong with an outcome, nothing if all is well."""
    if outcome.problem:
        return outcome.problem
    if outcome.code not in (0, 1, 2):
        return f"traceback: exit {outcome.code}"
    out, err = outcome.texts()
    if _RAW.search((out + err).decode("utf-8", "replace")):
        return "raw"
    if outcome.code and not (out + err).strip():
        return "silent"
    if outcome.code == 0 and lost is not None and lost(out):
        return "lost"
    return ""


def commands(seed: int, case: int, folder: Path) -> Iterator[tuple[str, Outcome, Any]]:
    """Write a case's files and yield each command's name, outcome and test of its output."""
    rng = random.Random(f"{seed}/{case}")
    content = debates_file(rng)
    file, answers = folder / "debates", folder / "answers.jsonl"
    file.write_bytes(content)
    answers.write_bytes(answers_file(rng))
    name = str(file)
    yield "validate", run(protocol_main, ["validate", name]), None
    yield "show", run(protocol_main, ["show", name]), None

    def exported(form: str) -> Outcome:
        return run(protocol_main, ["export", name, "--to", form])

    as_lines, as_xml = exported("jsonl"), exported("xml")
    yield "export jsonl", as_lines, lambda out: not _same(out, content)
    yield "export xml", as_xml, lambda out: not _same(out, content)
    reward = sorted(REWARDS)[case % len(REWARDS)]
    flags = [part for one in _SETTINGS.get(reward, ()) for part in ("--set", one)]
    yield "score", run(rewards_main, ["score", name, "--reward", reward, *flags]), None
    yield "stats", run(rewards_main, ["stats", name]), None
    kind = ("number", "text", "choice", "yes_no", "math")[case % 5]
    verify = ["verify", str(answers), "--kind", kind, "--limit-s", "1"]
    yield "verify", run(rewards_main, verify), None
    run_dir = folder / "run"
    (run_dir / "transcripts").mkdir(parents=True, exist_ok=True)
    (run_dir / "transcripts" / "rl-000001.jsonl").write_bytes(content)
    for part, text in run_files(rng).items():
        (run_dir / part).write_bytes(text)
    yield "report", run(report_main, [str(run_dir)]), None


def _same(out: bytes, content: bytes) -> bool:
    """Tell whether an export reads back as what was read."""
    try:
        return _read(out) == _read(content)
    except ValueError:
        return False


def _read(content: bytes) -> list[Any]:
    if content.lstrip()[:5] in (b"<?xml", b"<tran") or content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return from_xml(content)
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read_transcripts(file.name)


def run_case(seed: int, case: int) -> dict[str, Any]:
    """Return what every command did with a case."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, outcome, lost in commands(seed, case, Path(folder)):
            found[name] = {"code": outcome.code, "seconds": round(outcome.seconds, 3)}
            if wrong := failure(outcome, lost):
                found[name]["failure"] = wrong
    return {"seed": seed, "case": case, "commands": found}


def counts(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return cases, inputs and failures of all rows, by command."""
    cases = inputs = 0
    codes: dict[str, Counter[str]] = {}
    failed: Counter[str] = Counter()
    longest = 0.0
    for row in rows:
        cases += 1
        for name, found in row["commands"].items():
            inputs += 1
            codes.setdefault(name, Counter())[str(found["code"])] += 1
            longest = max(longest, found["seconds"])
            if "failure" in found:
                failed[found["failure"].partition(":")[0]] += 1
    return {
        "cases": cases,
        "inputs": inputs,
        **{name: failed[name] for name in FAILURES},
        "longest_s": longest,
        "exit_codes": {name: dict(sorted(found.items())) for name, found in codes.items()},
    }


@contextlib.contextmanager
def limited_time() -> Iterator[None]:
    """Let the alarm end what takes too long."""

    def too_slow(number: int, frame: object) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGALRM, too_slow)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def main() -> int:
    """Run the cases that the state does not hold yet; return 1 when any failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path, default=Path("runs/mutated_transcripts.jsonl"))
    options = parser.parse_args()
    options.state.parent.mkdir(parents=True, exist_ok=True)
    lines = options.state.read_bytes().split(b"\n")[:-1] if options.state.exists() else []
    rows = [row for row in map(json.loads, lines) if row["seed"] == options.seed]
    done = {row["case"] for row in rows}
    # How often questions are drawn anew is no matter of the input, and most of the time.
    intervals.RESAMPLES = 100
    check(Question("first", "", "\\sqrt{8}"), "2\\sqrt{2}", limit_s=60)  # starts the workers
    with limited_time(), options.state.open("wb") as state:
        state.writelines(line + b"\n" for line in lines)  # without a line that was cut off
        for case in range(options.cases):
            if case in done:
                continue
            row = run_case(options.seed, case)
            rows.append(row)
            state.write(json.dumps(row).encode() + b"\n")
            state.flush()
            for name, found in row["commands"].items():
                if "failure" in found:
                    print(f"case {case}, {name}: {found['failure']}", file=sys.stderr)
    found = counts(rows)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seed": options.seed, **found, "peak_mib": round(peak)}))
    return int(any(found[name] for name in FAILURES))


if __name__ == "__main__":
    sys.exit(main())
