"""One question, debated by any models."""

import argparse
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from debate_protocol.types import Ask, Question, Reply, Transcript
from debate_rewards.answers.checking import answer_classes, same_answer
from debate_rewards.gate_rules import Agreed
from debate_rewards.reading import read_debate
from debate_rewards.votes.decisions import answer_text, decisions_of, last_turns
from debate_rollout.engine import Request
from debate_rollout.forwarding import HeardEngine
from debate_train.checks.check_engines import refuse_absent_devices
from debate_train.checks.check_policies import missing_libraries
from debate_train.errors import UsageError
from debate_train.evaluating.policies import named_policy
from debate_train.models.policies import folder_problems
from debate_train.recipe import Recipe
from debate_train.running.engine_opening import open_sampling

Spoken = Callable[[Ask, Reply], None]
"""Is called with each turn as it comes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a debate came to.

    Attributes:
        answer: Of the decision rule, None where no agent gave one that can be read.
        decision: The rule.
        decisions: The answer of every rule that applies.
        votes: Agents of the last round for each answer; those that agree are one.
        transcript: The debate.
    """

    answer: str | None
    decision: str
    decisions: dict[str, str | None]
    votes: dict[str, int]
    transcript: Transcript


def settings_of(arguments: argparse.Namespace) -> list[str]:
    """Return the settings of a recipe that the options of `debate-ask` stand for."""
    models: list[str] = list(arguments.model)
    if arguments.url is None:
        models = [named_policy(text, "--model").model or text for text in models]
    found: list[str] = []

    def put(key: str, value: object) -> None:
        if value is not None:
            # A word as it was given, which is how messages show it.
            is_word = isinstance(value, str) and value.isidentifier()
            found.append(f"{key}={value if is_word else json.dumps(value)}")

    if arguments.url is not None:
        if not models:
            raise UsageError("--url: found no --model; expected the endpoint's name of the model")
        put("rollout.engine", _endpoint(arguments.url, models[0]))
    elif models:
        put("model", {"type": "pretrained", "name": models[0]})
    agents = arguments.agents
    if len(models) > 1:
        agents = len(models) if agents is None else agents
        if agents < len(models):
            raise UsageError(f"--agents: found {agents} for {len(models)} models; expected as many")
        put("rollout.policies", _others(models[1:], arguments.url))
        put("debate.roles", _roles(len(models), agents))
    put("debate.num_agents", agents)
    put("debate.max_rounds", arguments.rounds)
    put("debate.topology", arguments.topology)
    put("rollout.max_tokens", arguments.max_tokens)
    put("seed", arguments.seed)
    return found


def ask(
    recipe: Recipe,
    question: Question,
    spoken: Spoken,
    *,
    decision: str | None = None,
    until_agreed: bool = False,
) -> Answer:
    """Let the agents of a recipe debate a question.

    Args:
        recipe: Its model, debate and rollout are used; its gates go on.
        question: What is debated.
        spoken: Is called with each turn as it comes.
        decision: The rule whose answer counts; None is the peers' vote, or without comparisons
            the majority.
        until_agreed: End the debate after the first round whose answers are all the same.

    Raises:
        UsageError: The recipe's model or engine cannot be used, or the rule does not apply.
        EngineFailure: The engine failed twice on a request.
    """
    from transformers.utils import logging

    refuse_absent_devices(recipe)
    problems = list(missing_libraries(recipe))
    if "tokens" in recipe.rollout.engine.capabilities:
        problems += folder_problems(recipe.model)
    if problems:
        raise UsageError("\n".join(problems))
    form, rule = recipe.debate, Agreed() if until_agreed else None
    if decision == "central" and form.protocol().topology != "central":
        raise UsageError(
            "--decision: found central, which is the answer of the center; expected it with "
            "--topology central"
        )
    if rule is not None:
        form = form.changed({"gate_after": list(range(form.max_rounds - 1))})
    logging.disable_progress_bar()  # Of weights that are loaded: turns are what is shown.
    logging.set_verbosity_error()
    seed = zlib.crc32(f"{recipe.seed}/ask".encode())
    same = partial(same_answer, question)
    run = form.start(question, seed=seed, debate_id="asked", same_answer=same)

    def hear(replies: list[tuple[Request, Reply]]) -> None:
        for asked, reply in replies:
            spoken(asked.ask, reply)

    engine = open_sampling(recipe, recipe.data.open(recipe.seed))
    try:
        select = None if rule is None else partial(rule, seed=seed)
        transcript = recipe.rollout.play([run], HeardEngine(engine, hear), select)[0]
    finally:
        engine.close()
    return decided(transcript, decision, seed)


def decided(transcript: Transcript, decision: str | None, seed: int) -> Answer:
    """Return what a debate came to by a rule, and by all others that apply."""
    debate = read_debate(transcript)
    decisions = decisions_of(debate, seed)
    by = decision or ("peer_vote" if debate.compares else "majority")
    if by not in decisions:
        raise UsageError(
            f"--decision: found {by}, which does not apply to this debate; expected one of "
            f"{', '.join(decisions)}"
        )
    answers = [answer_text(debate, turn) for turn in last_turns(debate).values()]
    classes = answer_classes(transcript.question, answers)
    names = {place: answers[classes.index(place)] for place in classes if place is not None}
    counts = Counter(place for place in classes if place is not None)
    votes = {str(names[place]): count for place, count in counts.most_common()}
    return Answer(decisions[by], by, decisions, votes, transcript)


def _endpoint(url: str, model: str) -> dict[str, object]:
    key = "OPENAI_API_KEY" if os.environ.get("OPENAI_API_KEY") else None
    endpoint: dict[str, object] = {
        "type": "openai",
        "base_url": url,
        "model": model,
        "api_key_env": key,
    }
    # Whoever types the URL means it to get the key.
    return endpoint if key is None else endpoint | {"api_key_host": urlsplit(url).hostname}


def _others(models: list[str], url: str | None) -> dict[str, object]:
    """Return the policies of the models after the first."""
    if url is not None:
        return {
            f"model_{n}": {"type": "engine", "engine": _endpoint(url, model)}
            for n, model in enumerate(models, 2)
        }
    return {
        f"model_{n}": {"type": "model", "model": {"type": "pretrained", "name": model}}
        for n, model in enumerate(models, 2)
    }


def _roles(models: int, agents: int) -> dict[str, object]:
    """Return a role for each model, with as equal numbers of agents as can be."""
    return {
        f"model_{n + 1}": {"count": len(range(n, agents, models))}
        | ({"policy": f"model_{n + 1}"} if n else {})
        for n in range(models)
    }
