"""A model's chat template, tried on one dialogue before anything is played with it.

A template is a program of whoever made the model, and jinja's sandbox bounds neither its time nor
its memory. So it is tried in a process of its own, which a limit ends.
"""

import importlib
import math
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from debate_train.errors import ModelError
from debate_train.models.model_files import reading_model, reason_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LIMIT_S = 5.0
"""Seconds of a processor that a template may take for a dialogue of four messages.

Real ones take milliseconds. What other processes take of a busy machine does not count.
"""
WAIT_S = 120.0
"""Seconds after which nobody waits for a template any more, whatever it got of a processor."""
_JINJA = "transformers.utils.chat_template_utils"
_MEMORY = 1 << 30
_LARGEST_PROMPT = 1 << 20
_LARGEST_TEMPLATE = 1 << 20
_FINE = b"\0"
"""What the process that renders says where nothing went wrong: one that dies says nothing."""
_ROLES = (("user",), ("user", "assistant", "user"))


def check_template(
    name: str, tokenizer: "PreTrainedTokenizerFast", template_kwargs: Mapping[str, object]
) -> None:
    """Refuse a chat template that fails, or that takes too much time or memory.

    Args:
        name: The model's name.
        tokenizer: Its tokenizer; one without a template is prompted plainly.
        template_kwargs: Handed to the template.

    Raises:
        ModelError: The template cannot be used.
    """
    template = tokenizer.chat_template
    if not template:
        return
    if not isinstance(template, str):
        template = template.get("default") if isinstance(template, dict) else None
    if not isinstance(template, str) or len(template) > _LARGEST_TEMPLATE:
        raise _refused(name, f"is no text of at most {_LARGEST_TEMPLATE:,} characters")

    def try_it() -> str:
        with reading_model(name, "chat template"):
            return "".join(_rendered(tokenizer, roles, template_kwargs) for roles in _ROLES)

    failure = _bounded(try_it)
    if failure is not None:
        raise _refused(name, failure)


def _rendered(
    tokenizer: "PreTrainedTokenizerFast",
    roles: tuple[str, ...],
    template_kwargs: Mapping[str, object],
) -> str:
    messages = [{"role": role, "content": f"text {at}"} for at, role in enumerate(roles)]
    return str(
        tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **template_kwargs
        )
    )


def _refused(name: str, failure: str) -> ModelError:
    return ModelError(
        f"model.name: the chat template of {name!r} {failure}; expected one that writes messages "
        "of a user and an assistant in turn (chat_template.jinja or tokenizer_config.json)"
    )


def _bounded(render: Callable[[], str]) -> str | None:
    """Return what went wrong, None if nothing; the process that renders is ended at the limit."""
    if not hasattr(os, "fork") or sys.platform == "darwin":  # pragma: no cover
        return _outcome(render)
    importlib.import_module(_JINJA)  # Here, and not on the template's time.
    read, write = os.pipe()
    with warnings.catch_warnings():
        # Other threads may hold locks in the child, which takes none: it only renders text.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            os.close(read)
            _limit_memory()
            _limit_time()
            os.write(write, (_outcome(render) or "").encode("utf-8", "replace")[:1000] or _FINE)
        finally:
            os._exit(0)
    os.close(write)
    said, status = None, 0
    try:
        said = _heard(read)
    finally:
        os.close(read)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if said == _FINE:
        return None
    if said is None:
        return f"is not through with a few words after {WAIT_S:g} seconds"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGXCPU):
        return f"takes more than {LIMIT_S:g} seconds of a processor for a few words"
    return said.decode("utf-8", "replace") or "ends the process that tries it"


def _heard(read: int) -> bytes | None:
    """Return all that the other process says, None if it does not come to an end."""
    deadline, said = time.monotonic() + WAIT_S, b""
    while True:
        ready, _, _ = select.select([read], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        part = os.read(read, 4096)
        if not part:
            return said
        said += part


def _outcome(render: Callable[[], str]) -> str | None:
    try:
        length = len(render())
    except ModelError as error:
        cause = error.__cause__ or error
        return f"fails ({reason_of(cause)})"
    if length > _LARGEST_PROMPT:
        return f"makes {length:,} characters of a few words"
    return None


def _limit_time() -> None:  # pragma: no cover
    """Have the system end this process when it has used its seconds of a processor."""
    import resource

    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    seconds = math.ceil(LIMIT_S) + 1  # Counts whole seconds only, but a template cannot undo it.
    resource.setrlimit(resource.RLIMIT_CPU, (seconds if hard < 0 else min(seconds, hard), hard))


def _limit_memory() -> None:  # pragma: no cover
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = held + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
