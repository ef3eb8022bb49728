"""Part (c): do debates end sooner when none waits for another?

Lock-step and free running play the same debates in turns, on a scripted engine whose replies take
log-normal times, and on vLLM with replies of log-normal length where vLLM is installed.
"""

import importlib.util
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.engines.rollout_debates import debates, random_model, sampled_tokens, skewed
from benchmarks.measurement import print_line
from debate_protocol.types import DebateRun, Transcript
from debate_rollout.drivers import FreeRunning, LockStep, play
from debate_rollout.engine import Engine
from debate_rollout.engines import ScriptedEngine, VllmEngine
from debate_rollout.engines.scripted import Delay

DRIVERS = {"lock_step": LockStep(), "free_running": FreeRunning()}
SAID = "<solution>4</solution><evaluation>N/A</evaluation><comparison>N/A</comparison>"
PACKAGES = ("debate-rollout", "debate-protocol")


def measure(repeats: int, count: int) -> None:
    """Print the lines of this part."""
    overhead(repeats)
    for spread in (0.5, 1.0, 1.5):
        delay = Delay(median_s=0.02, spread=spread, slots=64)
        engine = ScriptedEngine(replies={"*": SAID}, delay=delay).open()
        settings: dict[str, Any] = {"debates": count, "agents": 5, "rounds": 3, **dict(delay)}
        compare(
            f"rollout/pace/scripted_spread_{spread:g}",
            engine,
            lambda: debates(count, rounds=3, agents=5),
            settings,
            repeats,
        )
    if importlib.util.find_spec("vllm") is not None:
        _measure_vllm(repeats, count)


def overhead(repeats: int) -> None:
    """Print what a driver costs an ask, with an engine that answers at once and no renderer."""
    for count in (100, 1000, 10000):
        for name in DRIVERS:
            found = []
            for _ in range(repeats):
                engine = ScriptedEngine(replies={"*": "4"}, delay=Delay(median_s=1e-9)).open()
                runs = [_bare(k) for k in range(count)]
                started = time.process_time()
                driver = FreeRunning(in_flight=count) if name == "free_running" else LockStep()
                play(runs, engine, max_tokens=8, driver=driver)
                found.append((time.process_time() - started) / (count * 15) * 1e6)
            settings = {"debates_in_flight": count, "agents": 5, "rounds": 3, "engine": "scripted"}
            print_line(f"rollout/overhead/{name}", found, "us/ask", "lower", settings, PACKAGES)


def compare(
    benchmark: str,
    engine: Engine,
    make: Callable[[], list[DebateRun]],
    settings: dict[str, Any],
    repeats: int,
) -> None:
    """Play the same debates with both drivers in turns; print both and their ratio."""
    play(make(), engine, max_tokens=64)
    seconds: dict[str, list[float]] = {name: [] for name in DRIVERS}
    tokens = 0
    for _ in range(repeats):
        told: list[Sequence[Transcript]] = []
        for name, driver in DRIVERS.items():
            runs = make()
            started = time.perf_counter()
            told.append(play(runs, engine, max_tokens=64, driver=driver))
            seconds[name].append(time.perf_counter() - started)
        if told[0] != told[1]:
            raise SystemExit(f"{benchmark}: the drivers gave different transcripts")
        tokens = sampled_tokens(told[0])
    settings = settings | ({"sampled_tokens": tokens} if tokens else {})
    for name, found in seconds.items():
        print_line(f"{benchmark}/{name}", found, "s", "lower", settings, PACKAGES)
    ratios = [a / b for a, b in zip(seconds["lock_step"], seconds["free_running"], strict=True)]
    print_line(f"{benchmark}/speed_up", ratios, "ratio", "higher", settings, PACKAGES)


def _bare(number: int) -> DebateRun:
    from debate_protocol.types import Protocol, Question, TurnRequest

    question = Question(str(number), "?")
    for round_ in range(3):
        yield [TurnRequest(question, agent, round_, ()) for agent in range(5)]
    return Transcript(question.id, question, Protocol(5, 3), ())


def _measure_vllm(repeats: int, count: int) -> None:
    model, tokenizer = random_model(hidden=64, layers=2)
    slots = 32
    engine = VllmEngine(max_batch=slots, enforce_eager=True, context_window=4096, kv_cache_mib=256)
    running = engine.open(model, tokenizer)
    for spread in (0.5, 1.0):
        lengths = {"median": 24, "spread": spread, "longest": 256}
        settings: dict[str, Any] = {"debates": count, "agents": 5, "rounds": 3, "max_batch": slots}
        compare(
            f"rollout/pace/vllm_spread_{spread:g}",
            running,
            lambda lengths=lengths: [skewed(run, **lengths) for run in debates(count, 3, 5)],
            settings | lengths,
            repeats,
        )
    running.close()
