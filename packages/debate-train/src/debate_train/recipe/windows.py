"""Whether the longest prompt and reply of each policy fit the policy's context window."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from debate_protocol.forms import DebateForm
from debate_protocol.types import TRAINED, Question
from debate_rollout.engine import EngineSettings
from debate_train.models import ModelConfig
from debate_train.recipe.context import (
    Longest,
    TokenCounter,
    Window,
    context_window,
    longest_prompt,
    token_counter,
)
from debate_train.recipe.policies import known_policies, trained_policy
from debate_train.recipe.recipe import Recipe


@dataclass(slots=True)
class Windows:
    """Compares prompts with the windows of all policies.

    Reads each tokenizer once, and plays equal debates of phases and evaluations once.

    Attributes:
        lines: Receives a line for each fitting prompt.
        errors: Receives a line for each prompt over a window.
        model: Replaces the model of the recipe.
    """

    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    model: ModelConfig | None = None
    _counters: dict[str, TokenCounter] = field(default_factory=dict)
    _longest: dict[str, Longest] = field(default_factory=dict)

    def counter(self, policy: str, model: ModelConfig | None) -> TokenCounter:
        """Build the counter of a policy's tokens."""
        if policy not in self._counters:
            self._counters[policy] = token_counter(model)
        return self._counters[policy]

    def compare(
        self, phase: Recipe, form: DebateForm, question: Question | None, prefix: str = ""
    ) -> None:
        """Compare the longest prompt of each speaking policy of a form with the policy's window.

        An unknown window is reported for the trained policy only: the window of an endpoint
        is the endpoint's affair.
        """
        agents_by_policy: dict[str, list[int]] = {}
        for agent in range(form.num_agents):
            agents_by_policy.setdefault(form.policy_of(agent), []).append(agent)
        for name, agents in agents_by_policy.items():
            trained = trained_policy(phase, self.model)
            model: ModelConfig | None = trained.model
            engine = phase.rollout.engine
            key = ""
            if name != TRAINED:
                policy = known_policies(phase)[name]
                model = policy.sampled_model(trained)
                engine = policy.engine_config(trained)
                key = f"rollout.policies.{name}." if name in phase.rollout.policies else ""
            window = _smaller_window(model, engine, key)
            if name != TRAINED and window.tokens is None:
                continue

            counter = self.counter(name, model)
            max_tokens = phase.rollout.max_tokens
            longest = self._longest_prompt(form, question, max_tokens, name, counter, agents)
            num_tokens = longest.prompt_tokens + max_tokens
            text = (
                f"{prefix}context{'' if name == TRAINED else f' of policy {name}'}: at most "
                f"{num_tokens:,} tokens (prompt {longest.prompt_tokens:,} of agent "
                f"{longest.agent} in round {longest.round + 1} + reply {max_tokens:,}; "
                f"{counter.how})"
            )
            if window.tokens is None:
                text += f"; window {window.source}: set model.context_window to check it"
                self.lines.append(f"  {text}")
            elif num_tokens <= window.tokens:
                self.lines.append(f"  {text}; window {window.tokens:,} ({window.source})")
            else:
                self.errors.append(_too_long(text, question, longest, window))

    def _longest_prompt(
        self,
        form: DebateForm,
        question: Question | None,
        max_tokens: int,
        policy: str,
        counter: TokenCounter,
        agents: Sequence[int],
    ) -> Longest:
        # By their texts: settings of a form may be dictionaries, which no key can hold.
        key = repr((type(form), form, question, max_tokens, policy, agents))
        if key not in self._longest:
            self._longest[key] = longest_prompt(form, question, max_tokens, counter, agents)
        return self._longest[key]


def _too_long(text: str, question: Question | None, longest: Longest, window: Window) -> str:
    """Name the keys to lower, and the longest question if it fills half of the window."""
    culprit = ""
    num_tokens = longest.question_tokens
    if question is not None and 2 * num_tokens >= (window.tokens or 0):
        culprit = (
            f"; the longest question, id {question.id!r:.80}, alone has {num_tokens:,} tokens "
            f"({question.text!r:.60})"
        )
    return (
        f"{text} is above the window of {window.tokens:,} ({window.source}); lower "
        f"rollout.max_tokens or the debate's agents, rounds or max_chars_per_field{culprit}"
    )


def _smaller_window(model: ModelConfig | None, engine: EngineSettings, key: str) -> Window:
    """Select the smaller window of a model and its engine; their keys begin with `key`."""
    window = Window(None, "unknown here") if model is None else context_window(model)
    if key and window.source.startswith("model."):
        window = Window(window.tokens, key + window.source)
    engine_tokens = engine.window()
    if engine_tokens is not None and (window.tokens is None or engine_tokens < window.tokens):
        return Window(engine_tokens, f"{key or 'rollout.'}engine.context_window")
    return window
