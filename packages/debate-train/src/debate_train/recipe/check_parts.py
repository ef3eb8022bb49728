"""Whether engine, policies, windows and imitated turns of a recipe fit each other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from debate_protocol.forms import DebateForm
from debate_protocol.plugins import did_you_mean
from debate_protocol.types import TRAINED, Question, Reply, TurnRequest, roles_of
from debate_rollout.engine import EngineSettings, TrainingSetup
from debate_rollout.engines.transformers import absent_device
from debate_train.data import DataSource
from debate_train.data.demonstrations import is_bare
from debate_train.data.splits import identity
from debate_train.errors import RecipeError
from debate_train.models import ModelConfig
from debate_train.models.loaded_model import trained_adapters
from debate_train.models.model_files import is_adapter
from debate_train.models.policies import START, PolicyConfig, StartPolicy, TrainedPolicy
from debate_train.offline.example_set import harm_of, look_at_demonstrations, read_debates
from debate_train.offline.offline_set import PLAYED, OfflineSettings
from debate_train.playing import named_debates
from debate_train.recipe import Recipe
from debate_train.recipe.context import (
    Longest,
    TokenCounter,
    Window,
    context_window,
    hold,
    longest_prompt,
    many,
    step_counts,
    token_counter,
)


def known_policies(recipe: Recipe) -> dict[str, PolicyConfig]:
    """Return the policies that roles may name besides the trained one."""
    return {START: StartPolicy(), **recipe.rollout.policies}


def used_policies(recipe: Recipe) -> dict[str, PolicyConfig]:
    """Return the policies that speak in the recipe's debates besides the trained one."""
    known = known_policies(recipe)
    names: dict[str, None] = {}
    for phase in recipe.phase_recipes().values():
        for form in (phase.debate, *(one.form for _, one in phase.evaluated().plays())):
            names |= dict.fromkeys(role.policy for role in roles_of(form.protocol()))
    return {name: known[name] for name in names if name in known}


def _trained(recipe: Recipe, model: ModelConfig | None = None) -> TrainedPolicy:
    return TrainedPolicy(recipe.rollout.engine, model or recipe.model, recipe.seed)


def role_lines(phase: Recipe) -> list[str]:
    """Say who speaks for each role and what is trained; nothing where all are equals."""
    roles, known = roles_of(phase.debate.protocol()), known_policies(phase)
    if len(roles) == 1 and roles[0].trains:
        return []
    said = []
    for role in roles:
        speaker = "the trained policy"
        if role.adapter is not None:
            speaker += f", adapter {role.adapter}"
        if role.policy != TRAINED:
            speaker = f"policy {role.policy} ({known[role.policy].described(_trained(phase))})"
        said.append(
            f"  role {role.name}: {many(role.count, 'agent')}, {speaker}, "
            f"{'trained on' if role.trains else 'not trained on'}"
            f"{'' if role.answers else ', owes no answer'}"
        )
    return said


def missing_libraries(recipe: Recipe) -> list[str]:
    """Return what the engines of a recipe need and is not installed here."""
    return [
        f"{key}.type: found {engine.type}, which {missing}, or another engine"
        for key, engine in engines_used(recipe).items()
        if (missing := engine.missing_library()) is not None
    ]


def engines_used(recipe: Recipe) -> dict[str, EngineSettings]:
    """Return the engines of all policies by where they are chosen, the trained one's first."""
    found: dict[str, EngineSettings] = {"rollout.engine": recipe.rollout.engine}
    for name, policy in used_policies(recipe).items():
        key = f"rollout.policies.{name}.engine"
        if name not in recipe.rollout.policies:
            key = f"rollout.engine (for policy {name})"
        found[key] = policy.engine_config(_trained(recipe))
    return found


def key_lines(recipe: Recipe) -> list[str]:
    """Return which environment variables' values are sent where."""
    engines = engines_used(recipe).items()
    return [f"{key}: {text}" for key, engine in engines if (text := engine.sent_key()) is not None]


def policy_errors(recipe: Recipe, *, with_tokenizer: bool = True) -> list[str]:
    """Return what keeps the recipe's other policies from speaking.

    Without their tokenizers, models in directories need a configuration alone.
    """
    found = [*_adapter_errors(recipe)] + [
        f"rollout.policies.{name}.{problem}"
        for name, policy in used_policies(recipe).items()
        for problem in policy.problems(_trained(recipe), with_tokenizer=with_tokenizer)
    ]
    engines = engines_used(recipe)
    first, *others = [key for key, one in engines.items() if one.one_in_process] or [""]
    return found + [
        f"{key}: found a {engines[key].type} inside this process, which can hold one, and "
        f"{first} is there; expected type: vllm_server"
        for key in others
    ]


def _adapter_errors(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps several adapters from being served and trained."""
    lora, engine = recipe.model.lora, recipe.rollout.engine
    if lora is None or len(lora.adapters) < 2:
        return
    if "lora" in engine.capabilities and "adapters" not in engine.capabilities:
        yield (
            f"rollout.engine.type: found {engine.type}, which serves one adapter of "
            f"{len(lora.adapters)}; expected transformers, vllm or vllm_server"
        )
    for where, phase in _places(recipe):
        most, trained = phase.trainer.adapters_at_once, trained_adapters(lora, phase.debate)
        if len(trained) > most:
            yield (
                f"{where}trainer.type: found {phase.trainer.type}, which trains {most or 'no'} "
                f"adapter by its name at a time, with {' and '.join(trained)}; expected torch"
            )


def _places(recipe: Recipe) -> list[tuple[str, Recipe]]:
    """Return each phase with what its keys begin with."""
    phases = recipe.phase_recipes().items()
    return [(f"phases.{name}." if recipe.phases else "", phase) for name, phase in phases]


def adapter_warnings(recipe: Recipe) -> list[str]:
    """Name adapters that no role trains, and an adapter that rounding would undo."""
    lora = recipe.model.lora
    phases = recipe.phase_recipes().values()
    trained_names = {name for phase in phases for name in trained_adapters(lora, phase.debate)}
    adapter_names = () if lora is None else lora.adapters
    warnings = [
        f"model.lora.adapters: found {name!r}, which no role that is trained on names; expected "
        f"debate.roles.NAME.adapter: {name}"
        for name in adapter_names
        if name not in trained_names
    ]
    source = recipe.model.source
    if source is not None and is_adapter(source) and recipe.model.dtype != "float32":
        # A weight in bfloat16 has eight bits: most of what an adapter adds is below its last.
        warnings.append(
            f"model.dtype: found {recipe.model.dtype} for the adapter {source!r}, which is merged "
            "into its base; most of a small change is lost in rounding; expected float32"
        )
    return warnings


ONE_LINE_CONTRACT = "answer_line"
NEEDED = {"tokens": "token ids", "logps": "log-probabilities"}
"""Capabilities that training needs of an engine, and what they are called."""


def engine_errors(recipe: Recipe) -> list[str]:
    """Return what keeps the recipe's engine from sampling for a trainer."""
    engine = recipe.rollout.engine
    if not engine.is_sampled:
        return [
            "rollout.engine.type: found demonstrations for the whole recipe; expected them in a "
            "phase"
        ]
    missing = [text for name, text in NEEDED.items() if name not in engine.capabilities]
    if missing:
        return [
            f"rollout.engine.type: found {engine.type}, whose replies have no "
            f"{' and no '.join(missing)} to train on; expected one such as transformers or vllm"
        ]
    return [f"rollout.engine.{problem}" for problem in engine.problems(_place(recipe, 1))]


def process_errors(recipe: Recipe, size: int) -> list[str]:
    """Return which trainers and engines cannot be used in so many processes."""
    engine = recipe.rollout.engine
    found = [
        f"{where}trainer.type: found {phase.trainer.type} in {size} processes; expected deepspeed "
        "(trainer.type=deepspeed), or one process"
        for where, phase in _places(recipe)
        if size > 1 and not phase.trainer.several_processes
    ]
    known = set() if size == 1 else set(engine.problems(_place(recipe, 1)))  # Said by a check.
    problems = engine.problems(_place(recipe, size))
    return [*found, *(f"rollout.engine.{text}" for text in problems if text not in known)]


def refuse_absent_devices(recipe: Recipe) -> None:
    """Refuse devices that are not there before a model is loaded for them; needs torch.

    Raises:
        RecipeError: The recipe names one.
    """
    named = {f"{key}.device": one.named_device() for key, one in engines_used(recipe).items()}
    for name, phase in recipe.phase_recipes().items():
        where = f"phases.{name}." if "trainer" in recipe.phases.get(name, {}) else ""
        named[f"{where}trainer.device"] = phase.trainer.named_device()
    errors = [
        f"{key}: found {device!r}, which cannot be used here ({why}); expected auto, or a device "
        "of this machine"
        for key, device in named.items()
        if (why := absent_device(device)) is not None
    ]
    if errors:
        raise RecipeError("\n".join(errors))


def _place(recipe: Recipe, size: int) -> TrainingSetup:
    lora = recipe.model.lora
    return TrainingSetup(size, None if lora is None else lora.rank)


SHARED_BY_PHASES = ("name", "seed", "model", "checkpoint", "tracking", "rollout.policies")
"""Keys that a run takes from the recipe as a whole; a phase cannot change them."""


def phase_errors(name: str, phase: Recipe, recipe: Recipe, source: DataSource | None) -> list[str]:
    """Return what keeps a phase from being part of its run."""
    shared = [*SHARED_BY_PHASES, *(["rollout.engine"] if phase.rollout.engine.is_sampled else [])]
    found = [
        f"phases.{name}.{key}: found a difference, but a run has one; expected it outside of phases"
        for key in shared
        if attrgetter(key)(phase) != attrgetter(key)(recipe)
    ]
    if not phase.rollout.engine.is_sampled and source is not None and not source.can_demonstrate:
        found.append(
            f"phases.{name}.rollout.engine.type: found demonstrations, but data of type "
            f"{phase.data.type} has none; expected data.fields.solution in every row"
        )
    return found


@dataclass(slots=True)
class Windows:
    """Looks at the windows of all policies; reads each tokenizer once."""

    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    model: ModelConfig | None = None
    """What stands for the model of the recipe."""
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
        trained, reply = _trained(phase, self.model), phase.rollout.max_tokens
        agents: dict[str, list[int]] = {}
        for agent in range(form.num_agents):
            agents.setdefault(form.policy_of(agent), []).append(agent)
        for name, own in agents.items():
            model: ModelConfig | None = trained.model
            engine, key = phase.rollout.engine, ""
            if name != TRAINED:
                policy = known_policies(phase)[name]
                key = f"rollout.policies.{name}." if name in phase.rollout.policies else ""
                model, engine = policy.sampled_model(trained), policy.engine_config(trained)
            window = _window(model, engine, key)
            if name != TRAINED and window.tokens is None:
                continue
            counter = self.counter(name, model)
            longest = longest_prompt(form, question, reply, counter, own)
            total = longest.prompt_tokens + reply
            text = (
                f"{what}context{'' if name == TRAINED else f' of policy {name}'}: at most "
                f"{total:,} tokens (prompt {longest.prompt_tokens:,} of agent {longest.agent} in "
                f"round {longest.round + 1} + reply {reply:,}; {counter.how})"
            )
            if window.tokens is None:
                text += f"; window {window.source}: set model.context_window to check it"
                self.lines.append(f"  {text}")
            elif total <= window.tokens:
                self.lines.append(f"  {text}; window {window.tokens:,} ({window.source})")
            else:
                self.errors.append(_too_long(text, question, longest, window))


def _too_long(text: str, question: Question | None, longest: Longest, window: Window) -> str:
    """Say what to lower; name the longest question where it is a large part."""
    row, tokens = "", longest.question_tokens
    if question is not None and 2 * tokens >= (window.tokens or 0):
        row = f"; the longest question, id {question.id!r:.80}, alone has {tokens:,} tokens "
        row += f"({question.text!r:.60})"
    return (
        f"{text} is above the window of {window.tokens:,} ({window.source}); lower "
        f"rollout.max_tokens or the debate's agents, rounds or max_chars_per_field{row}"
    )


def _window(model: ModelConfig | None, engine: EngineSettings, key: str) -> Window:
    """Return the smaller window of a model and its engine, whose keys begin with `key`."""
    window = Window(None, "unknown here") if model is None else context_window(model)
    if key and window.source.startswith("model."):
        window = Window(window.tokens, key + window.source)
    served = engine.window()
    if served is not None and (window.tokens is None or served < window.tokens):
        return Window(served, f"{key or 'rollout.'}engine.context_window")
    return window


def imitation_errors(phase: Recipe) -> Iterator[str]:
    """Yield what is wrong with the phase's loss for the replies that it gets."""
    demonstrated = not phase.rollout.engine.is_sampled
    loss, made_for, offline = phase.loss.type, phase.loss.learns_from, phase.offline
    if offline is not None:
        if offline.path is None and (problem := offline.problem(phase.debate)):
            yield f"offline.{problem}"
        found = f"with offline.type {offline.type}, which"
        if made_for != offline.teaches:
            wanted = "dpo" if offline.teaches == "pairs" else "sft"
            yield f"loss.type: found {loss} {found} gives {offline.teaches}; expected {wanted}"
        if offline.held_out and offline.teaches != "pairs":
            yield f"offline.held_out: found {offline.held_out} {found} gives no pairs; expected 0"
        if demonstrated and offline.teaches != "demonstrations":
            said = f"rollout.engine.type: found demonstrations {found} compares sampled replies"
            yield f"{said}; expected another engine"
    elif made_for == "pairs":
        yield (
            f"loss.type: found {loss}, which learns from preference pairs, without a set of them; "
            "expected offline: {type: guided_pairs} or answer_pairs"
        )
    elif made_for == "demonstrations" and not demonstrated:
        yield (
            f"loss.type: found {loss} with replies that {phase.rollout.engine.type} samples; "
            "expected rollout.engine.type: demonstrations, or a loss such as reinforce"
        )
    if offline is None and demonstrated and made_for != "demonstrations":
        yield f"loss.type: found {loss} with demonstrations; expected sft"


def made_of(phase: Recipe, offline: OfflineSettings) -> str:
    """Return what the examples of a phase are taken from: debates that are played, or of files.

    Raises:
        UsageError: There are no such files.
    """
    if offline.path is not None:
        read = read_debates(offline)
        asked = len({identity(debate.question) for debate in read})
        turns = [turn for debate in read for turn in debate.turns]
        return (
            f"{many(len(read), 'debate')} of {many(asked, 'question')} in {offline.path}; "
            f"{many(len(turns), 'turn')}, {sum(not turn.prompt for turn in turns):,} of them "
            "without the prompt"
        )
    questions, rollout = offline.questions or PLAYED, phase.rollout
    debates, _, count, *_ = step_counts(phase, questions)
    return (
        f"{many(questions, 'question')} x {many(rollout.debates_per_question, 'debate')} = "
        f"{many(debates, 'debate')}; {many(count, 'turn')}, at most "
        f"{count * rollout.max_tokens:,} tokens in replies"
    )


def hidden_keys(
    phase: Recipe, questions: Sequence[Question], *, answers: bool
) -> tuple[list[str], list[str]]:
    """Return what is wrong with what forms hide from judges or assign, and what holds for few.

    Args:
        phase: The phase.
        questions: Of its data.
        answers: Whether questions have answers.

    Returns:
        Errors: keys of `private` that no question has, sides that nobody can be given. Warnings:
        keys that some questions lack, answers that a contract of one line cannot hold.
    """
    errors, warnings = list[str](), list[str]()
    forms = [("debate", phase.debate), ("evaluation.debate", phase.evaluated().form)]
    forms += [(f"rollout.other_forms.{n}", x) for n, x in enumerate(phase.rollout.other_forms)]
    known = dict.fromkeys(key for question in questions for key in question.meta)
    num_long = sum("\n" in (question.answer or "").strip() for question in questions)
    for where, form in forms if questions else ():
        if num_long and getattr(form, "contract", None) == ONE_LINE_CONTRACT:
            warnings.append(
                f"{where}.contract: found {ONE_LINE_CONTRACT}, and the answers of {num_long:,} of "
                f"{many(len(questions), 'question')} have several lines, so they cannot be given; "
                "expected boxed, or a contract with sections"
            )
        for key in getattr(form, "private", ()):
            count = sum(question.meta.get(key) is not None for question in questions)
            rows = f"{count:,} of {many(len(questions), 'question')}"
            if count == 0:
                errors.append(
                    f"{where}.private: found {key!r}, which {rows} have, so nothing is hidden; "
                    f"expected one of {', '.join(known) or 'no keys'}{did_you_mean(key, known)}"
                )
            elif count < len(questions):
                warnings.append(f"{where}.private: found {key!r}, which {rows} have")
        if getattr(form, "assigned", False) and not answers:
            errors.append(
                f"{where}.assigned: found true, and no question has an answer, so nobody is given "
                "a side; expected data.fields.answer to name a key that rows have"
            )
    return list(dict.fromkeys(errors)), warnings


_TURNS = 128
"""About how many demonstrated turns are looked at."""


def see_demonstrations(
    phase: Recipe, source: DataSource, counter: TokenCounter
) -> tuple[str | None, str | None]:
    """Play some debates of demonstrations; return what is wrong with them, and what weighs nothing.

    Replies are cut at `rollout.max_tokens` where `counter` counts and does not estimate.
    """
    script = phase.rollout.engine.script(source.demonstrate)
    if script is None or not source.can_demonstrate:
        return None, None
    most = phase.rollout.max_tokens

    def say(request: TurnRequest) -> Reply:
        text = script(request)
        tokens = counter.count(text) if counter.is_exact else 0
        return (
            Reply(text) if tokens <= most else Reply(text[: len(text) * most // tokens], "length")
        )

    copies = {"debates_per_question": 1, "direct_per_question": 0}
    once = phase.model_copy(update={"rollout": phase.rollout.model_copy(update=copies)})
    turns = max(form.turn_count() for form in phase.forms)
    questions = source.batch(0)[: max(len(phase.forms), _TURNS // turns)]
    played = [hold(run, say) for _, run in named_debates(once, questions, "check")]
    found = look_at_demonstrations(played)
    if problem := harm_of(found, str(phase.debate.contract_rules())):
        return f"rollout.engine.type: {problem}", None
    if turns == 1 and all(is_bare(one.turns[0].text) for one in played):
        return None, (
            "rollout.engine.type: demonstrated answers have no reasoning; expected a solution in "
            "every row (data.fields.solution), or the model's own (rollout.engine.accepted)"
        )
    if not found["failed"]:
        return None, None
    return None, (
        f"rollout.engine.type: of {found['turns']:,} demonstrated turns {found['failed']:,} hold "
        "no readable answer within rollout.max_tokens: these weigh nothing"
    )
