"""Whether the longest prompt of each policy fits the window of the model that speaks for it."""

from dataclasses import dataclass, field

from debate_protocol.forms import DebateForm
from debate_protocol.types import TRAINED, Question
from debate_rollout.engine_settings import EngineConfig
from debate_train.checks.check_context import (
    Longest,
    TokenCounter,
    Window,
    context_window,
    longest_prompt,
    token_counter,
)
from debate_train.checks.check_policies import known_policies
from debate_train.models import ModelConfig
from debate_train.models.policies import Trained
from debate_train.recipe import Recipe


@dataclass(slots=True)
class Windows:
    """Looks at the windows of all policies; reads each tokenizer once."""

    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _counters: dict[str, TokenCounter] = field(default_factory=dict)

    def counter(self, policy: str, model: ModelConfig | None) -> TokenCounter:
        """Return what counts the tokens of a policy."""
        if policy not in self._counters:
            self._counters[policy] = token_counter(model)
        return self._counters[policy]

    def look(
        self, phase: Recipe, form: DebateForm, question: Question | None, what: str = ""
    ) -> None:
        """Compare the longest prompt of each policy that speaks in a form with its window.

        Where nobody knows a window, only that of the trained policy is named: that of an endpoint
        is the endpoint's affair.
        """
        trained = Trained(phase.rollout.engine, phase.model, phase.seed)
        agents: dict[str, list[int]] = {}
        for agent in range(form.num_agents):
            agents.setdefault(form.policy_of(agent), []).append(agent)
        for name, own in agents.items():
            model: ModelConfig | None = phase.model
            engine, key = phase.rollout.engine, ""
            if name != TRAINED:
                policy = known_policies(phase)[name]
                key = f"rollout.policies.{name}." if name in phase.rollout.policies else ""
                model, engine = policy.sampled_model(trained), policy.engine_config(trained)
            window = _window(model, engine, key)
            if name == TRAINED or window.tokens is not None:
                counter, reply = self.counter(name, model), phase.rollout.max_tokens
                longest = longest_prompt(form, question, reply, counter, own)
                whose = "" if name == TRAINED else f" of policy {name}"
                text = f"{what}context{whose}: {_said(longest, reply, counter)}"
                row = _longest_row(question, longest, window)
                self._compare(text, longest.prompt_tokens + reply, window, row)

    def _compare(self, text: str, total: int, window: Window, row: str) -> None:
        if window.tokens is None:
            self.lines.append(
                f"  {text}; window {window.source}: set model.context_window to check it"
            )
        elif total <= window.tokens:
            self.lines.append(f"  {text}; window {window.tokens:,} ({window.source})")
        else:
            self.errors.append(
                f"{text} is above the window of {window.tokens:,} ({window.source}); lower "
                "rollout.max_tokens, debate.num_agents or debate.max_rounds, or set "
                f"debate.max_chars_per_field or debate.history_rounds=1{row}"
            )


def _said(longest: Longest, reply: int, counter: TokenCounter) -> str:
    return (
        f"at most {longest.prompt_tokens + reply:,} tokens (prompt {longest.prompt_tokens:,} of "
        f"agent {longest.agent} in round {longest.round + 1} + reply {reply:,}; {counter.how})"
    )


def _longest_row(question: Question | None, longest: Longest, window: Window) -> str:
    """Name the longest question where it is a large part of what does not fit."""
    tokens = longest.question_tokens
    if question is None or 2 * tokens < (window.tokens or 0):
        return ""
    return (
        f"; the longest question, id {question.id!r:.80}, alone has {tokens:,} tokens "
        f"({question.text!r:.60})"
    )


def _window(model: ModelConfig | None, engine: EngineConfig, key: str) -> Window:
    """Return the smaller window of a model and its engine, whose keys begin with `key`."""
    window = Window(None, "unknown here") if model is None else context_window(model)
    if key and window.source.startswith("model."):
        window = Window(window.tokens, key + window.source)
    served = engine.window()
    if served is not None and (window.tokens is None or served < window.tokens):
        return Window(served, f"{key or 'rollout.'}engine.context_window")
    return window
