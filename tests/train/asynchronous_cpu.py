"""Run `deepspeed_processes.py` with a CPU that DeepSpeed takes for a device with streams.

Each rank ends its output by a line of counts: waits of streams, records of events. Nothing here
runs later than it is called, so a missing wait changes no number: what shows is code that the
CPU's own branches never reach.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import deepspeed_processes
import torch
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from debate_train.trainers.processes import end_at_once

USED: Counter[str] = Counter()


class Event:
    def __init__(self, **_: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        USED["events"] += 1

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, _end: "Event") -> float:
        return 1.0


class Stream:
    def __init__(self, **_: Any) -> None:
        pass

    def wait_stream(self, other: "Stream") -> None:
        assert isinstance(other, Stream)
        USED["waits"] += 1

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, Event)
        USED["waits"] += 1

    def synchronize(self) -> None:
        USED["waits"] += 1


DEFAULT = Stream()
ENTERED = [Stream()]
"""The streams of the `with` statements around what runs; the first is the thread's own."""


@contextmanager
def entered(_: CPU_Accelerator, stream: Stream) -> Iterator[None]:
    assert isinstance(stream, Stream)
    ENTERED.append(stream)
    try:
        yield
    finally:
        ENTERED.pop()


def record_stream(_: torch.Tensor, stream: Stream) -> None:
    assert isinstance(stream, Stream)


def emulate() -> None:
    """Let DeepSpeed take the branches of a device that computes later than it is asked to."""
    replaced = {
        "is_synchronized_device": lambda _: False,
        "resolves_data_dependency": lambda _: False,
        "handles_memory_backpressure": lambda _: False,
        "Stream": Stream,
        "Event": Event,
        "stream": entered,
        "current_stream": lambda _, index=None: ENTERED[-1],
        "default_stream": lambda _, index=None: DEFAULT,
    }
    for name, value in replaced.items():
        assert hasattr(CPU_Accelerator, name)
        setattr(CPU_Accelerator, name, value)
    torch.Tensor.record_stream = record_stream  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    emulate()
    code = deepspeed_processes.main()
    print(json.dumps(USED))
    end_at_once(code)
    sys.exit(code)
