"""`debate-ask`: a question, debated by any models."""

import argparse
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from debate_protocol.command_line import is_quiet
from debate_protocol.transcripts.showing import escaped
from debate_protocol.types import Question, Reply, Transcript, TurnRequest, judging_agents, role_of
from debate_rewards.answer_checking import answer_classes, same_answer
from debate_rewards.decisions import Agreed, answer_text, decisions_of, last_turns, standings
from debate_rewards.reward import ReadDebate, read_debate
from debate_rollout.engine import Request
from debate_rollout.routing import HeardEngine
from debate_train.commands.evaluate import named_policy
from debate_train.commands.options import ASK_FORMS, ASK_RECIPE, ask_parser
from debate_train.commands.recipe_command import DONE, FAILED, command
from debate_train.errors import UsageError
from debate_train.models.policies import folder_problems
from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe
from debate_train.recipe.policies import missing_libraries
from debate_train.recipe.refusals import refuse_absent_devices
from debate_train.running.open_engines import open_sampling

TurnListener = Callable[[TurnRequest, Reply], None]
"""Called with each turn when its reply arrives."""

_DEFAULT_FORM = "{type: simultaneous, num_agents: 3, max_rounds: 2, contract: five_section}"


def settings_of(arguments: argparse.Namespace) -> list[str]:
    """List the `key=value` settings of a recipe for the options of `debate-ask`."""
    url = arguments.url
    models = list(arguments.model)
    num_agents = arguments.agents
    if url is not None and not models:
        raise UsageError("--url: found no --model; expected the endpoint's name of the model")
    if url is None:
        models = [named_policy(text, "--model").model or text for text in models]

    settings: dict[str, object] = {}
    if url is not None:
        settings["rollout.engine"] = _endpoint(url, models[0])
    elif models:
        settings["model"] = {"type": "pretrained", "name": models[0]}
    if len(models) > 1:
        roles, policies, num_agents = _assign_models(models, url, arguments)
        settings["rollout.policies"] = policies
        settings["debate.roles"] = roles
    # The judged form sets the number of speakers itself, so --agents counts its judges.
    agents_key = "debate.judges" if arguments.form == "judged" else "debate.num_agents"
    settings[agents_key] = num_agents
    settings["debate.max_rounds"] = arguments.rounds
    settings["debate.topology"] = arguments.topology
    settings["rollout.max_tokens"] = arguments.max_tokens
    settings["seed"] = arguments.seed

    # The form comes first, because it replaces `debate` whole and the others change keys of it.
    overrides = []
    num_rounds = ASK_FORMS.get(arguments.form)
    if num_rounds:
        overrides.append(f"debate={{type: {arguments.form}, max_rounds: {num_rounds}}}")
    elif arguments.recipe == ASK_RECIPE:
        overrides.append(f"debate={_DEFAULT_FORM}")
    for key, value in settings.items():
        if value is None:
            continue
        # A plain word stays as typed, so that a refusal shows it without quotes.
        is_word = isinstance(value, str) and value.isidentifier()
        overrides.append(f"{key}={value if is_word else json.dumps(value)}")
    return overrides


def _assign_models(
    models: Sequence[str], url: str | None, arguments: argparse.Namespace
) -> tuple[dict[str, object], dict[str, object], int | None]:
    """Give each model to a role.

    Returns:
        roles by name, policies of the models after the first, and the number of agents.
    """
    num_models = len(models)
    is_judged = arguments.form == "judged"
    if arguments.form == "conl" or (is_judged and num_models > 2):
        expected = "a speaker and a judge" if is_judged else "one for all agents"
        raise UsageError(f"--model: found {num_models}; expected {expected}")

    # The first model is the recipe's own, so it needs no policy.
    policies: dict[str, object] = {}
    for number, model in enumerate(models[1:], 2):
        if url is None:
            pretrained = {"type": "pretrained", "name": model}
            policies[f"model_{number}"] = {"type": "model", "model": pretrained}
        else:
            policies[f"model_{number}"] = {"type": "engine", "engine": _endpoint(url, model)}
    if is_judged:
        return {"judge": {"policy": "model_2"}}, policies, arguments.agents

    num_agents = num_models if arguments.agents is None else arguments.agents
    if num_agents < num_models:
        raise UsageError(f"--agents: found {num_agents} for {num_models} models; expected as many")
    roles: dict[str, object] = {}
    for index in range(num_models):
        name = f"model_{index + 1}"
        # Agents are dealt to the models in turn: the first models get one more where it is uneven.
        role: dict[str, object] = {"count": len(range(index, num_agents, num_models))}
        if index > 0:
            role["policy"] = name
        roles[name] = role
    return roles, policies, num_agents


def _endpoint(url: str, model: str) -> dict[str, object]:
    endpoint: dict[str, object] = {"type": "openai", "base_url": url, "model": model}
    if not os.environ.get("OPENAI_API_KEY"):
        return endpoint | {"api_key_env": None}
    # Whoever types the URL means it to get the key.
    return endpoint | {"api_key_env": "OPENAI_API_KEY", "api_key_host": urlsplit(url).hostname}


def ask(
    recipe: Recipe,
    question: Question,
    on_turn: TurnListener,
    *,
    decision: str | None = None,
    until_agreed: bool = False,
) -> dict[str, Any]:
    """Let the agents of a recipe debate a question.

    Args:
        recipe: Model, debate and rollout to use; no gate of the recipe stops a debate.
        question: The question to debate.
        on_turn: Called with each turn when its reply arrives.
        decision: The rule to answer by. The default is the rule of judges, or the peers' vote, or
            without comparisons the majority.
        until_agreed: End the debate after the first round with equal answers.

    Returns:
        The object of `--json`.

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
    form = recipe.debate
    protocol = form.protocol()
    if decision is not None:
        _refuse_decision(recipe, decision)
    if until_agreed:
        if judging_agents(protocol):
            raise UsageError("--until-agreed: found it before judges, who decide in the last round")
        form = form.changed({"gate_after": list(range(form.max_rounds - 1))})

    # transformers' bars and notes about loaded weights would come between the printed turns.
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    seed = zlib.crc32(f"{recipe.seed}/ask".encode())
    debate_run = form.start(
        question, seed=seed, debate_id="asked", same_answer=partial(same_answer, question)
    )

    def pass_on(replies: list[tuple[Request, Reply]]) -> None:
        for request, reply in replies:
            on_turn(request.turn_request, reply)

    engine = open_sampling(recipe, recipe.data.open(recipe.seed))
    try:
        select = partial(Agreed(), seed=seed) if until_agreed else None
        (transcript,) = recipe.rollout.play([debate_run], HeardEngine(engine, pass_on), select)
    finally:
        engine.close()
    return summarize(transcript, decision, seed)


def _refuse_decision(recipe: Recipe, decision: str) -> None:
    """Refuse a rule that cannot apply, before anything is asked.

    Raises:
        UsageError: The rule needs another form, contract or engine.
    """
    protocol = recipe.debate.protocol()
    contracts = [protocol.contract_of(round) for round in range(protocol.max_rounds)]
    compares = any("comparison" in contract.sections for contract in contracts)
    has_logps = "logps" in recipe.rollout.engine.capabilities
    needs = {
        "central": (protocol.topology == "central", "--topology central"),
        "judged": (bool(judging_agents(protocol)), "--form judged"),
        "peer_vote": (compares, "a contract with comparisons"),
        "bradley_terry": (compares, "a contract with comparisons"),
        "confidence": (has_logps, "an engine that gives log-probabilities"),
    }
    applies, need = needs.get(decision, (True, ""))
    if not applies:
        raise UsageError(f"--decision: found {decision}; expected it with {need}")


def summarize(transcript: Transcript, rule: str | None, seed: int) -> dict[str, Any]:
    """Collect a debate's answer, the answers of all rules, votes, tokens and turns.

    Raises:
        UsageError: The rule does not apply to this debate.
    """
    debate = read_debate(transcript)
    decisions = decisions_of(debate, seed)
    if rule is None:
        rule = next(name for name in ("judged", "peer_vote", "majority") if name in decisions)
    if rule not in decisions:
        raise UsageError(
            f"--decision: found {rule}; expected one that applies here: {', '.join(decisions)}"
        )

    answers = [answer_text(debate, turn) for turn in last_turns(debate).values()]
    # Answers are counted by meaning, and each class is shown by the first text of it.
    classes = answer_classes(transcript.question, answers)
    class_sizes = Counter(number for number in classes if number is not None).most_common()
    votes = {str(answers[classes.index(number)]): size for number, size in class_sizes}
    turns = []
    for turn in transcript.turns:
        read_turn = debate.turns.get(turn.key)
        turns.append(
            {
                "agent": turn.agent,
                "round": turn.round,
                "answer": None if read_turn is None else answer_text(debate, read_turn),
                "failure": turn.failure,
                "text": turn.text,
            }
        )
    token_counts = [turn.token_counts or (0, 0) for turn in transcript.sampled_turns()]
    return {
        "question": transcript.question.text,
        "answer": decisions[rule],
        "decision": rule,
        "explanation": explain(debate, rule, decisions[rule]),
        "decisions": decisions,
        "votes": votes,
        "rounds": 1 + max(turn.round for turn in transcript.turns),
        "tokens": {
            "prompt": sum(num_prompt for num_prompt, _ in token_counts),
            "sampled": sum(num_sampled for _, num_sampled in token_counts),
        },
        "turns": turns,
    }


def explain(debate: ReadDebate, rule: str, answer: str | None) -> list[str]:
    """Explain how the decision was made, and name the last answers where they differ from it.

    In the quickstart's test debates the votes on earlier answers were right more often than a
    unanimous end, so agreement does not overrule votes.
    """
    question = debate.transcript.question
    lines = []
    judged = standings(debate) if rule == "peer_vote" else []
    if judged:
        rounds = sorted({turn.key.round + 1 for turn, _ in judged})
        rounds_text = " and ".join(map(str, rounds))
        lines.append(f"by the votes of the others on the answers of round {rounds_text}")
        best = max(standing for _, standing in judged)
        tied = [answer_text(debate, turn) for turn, standing in judged if standing == best]
        others = [text for text in tied if text and not same_answer(question, text, answer)]
        if others:
            lines.append(f"tied with {', '.join(dict.fromkeys(others))}; drawn by the seed")
    last_answers = [answer_text(debate, turn) for turn in last_turns(debate).values()]
    classes = set(answer_classes(question, last_answers))
    is_unanimous = len(classes) == 1 and None not in classes
    if is_unanimous and not same_answer(question, last_answers[0], answer):
        lines.append(
            f"all {len(last_answers)} agents say {last_answers[0]} in the last round; "
            "--decision majority takes that"
        )
    return lines


class Printer:
    """Prints turns as they come, only the answer, or a JSON object."""

    def __init__(self, recipe: Recipe, as_json: bool) -> None:
        self._protocol = recipe.debate.protocol()
        self._as_json = as_json

    def turn(self, turn_request: TurnRequest, reply: Reply) -> None:
        """Print a turn."""
        if self._as_json or is_quiet():
            return
        heading = f"Agent {turn_request.agent}, round {turn_request.round + 1}"
        if len(self._protocol.roles) > 1:
            heading += f" ({role_of(self._protocol, turn_request.agent).name})"
        num_sampled = reply.token_counts[1]
        # Endpoints may count no tokens.
        if num_sampled:
            heading += f", {num_sampled:,} tokens"
        if reply.finish == "length":
            heading += ", cut off"
        print(f"--- {heading}\n{_printable(reply.text.strip())}\n", flush=True)

    def end(self, summary: dict[str, Any]) -> None:
        """Print the answer of the debate, and how it was decided."""
        if self._as_json:
            print(json.dumps(summary, ensure_ascii=False))
            return
        if is_quiet():
            print(_printable(summary["answer"] or ""))
            return
        num_rounds = summary["rounds"]
        how = f"by {summary['decision']}, after {num_rounds} round{'s' if num_rounds > 1 else ''}"
        tokens = summary["tokens"]
        if tokens["sampled"]:
            how += f"; {tokens['sampled']:,} tokens sampled, {tokens['prompt']:,} read"
        votes = ", ".join(f"{answer}: {count}" for answer, count in summary["votes"].items())
        rules = [f"{rule}: {answer or 'none'}" for rule, answer in summary["decisions"].items()]
        print(f"answer: {_printable(summary['answer'] or 'none that can be read')}")
        for line in summary["explanation"]:
            print(f"  {_printable(line)}")
        print(f"  {how}")
        print(f"  agents of the last round for each answer: {_printable(votes or 'none')}")
        print(f"  by rule: {_printable(', '.join(rules))}")


def _printable(text: str) -> str:
    """Escape control characters: a model's text must not act on the terminal."""
    return "\n".join(escaped(line) for line in text.splitlines())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    return command("debate-ask", ask_parser(), argv, _main)


def _main(arguments: argparse.Namespace) -> int:
    if not arguments.question.strip():
        raise UsageError("QUESTION: found no text; expected a question")
    if arguments.choice and arguments.kind not in (None, "choice"):
        raise UsageError(f"--choice: found with --kind {arguments.kind}; expected --kind choice")
    settings = settings_of(arguments)
    keys_of_options = {text.partition("=")[0] for text in settings} - {"debate"}
    for text in arguments.overrides:
        key = text.partition("=")[0].strip()
        if key in keys_of_options:
            raise UsageError(f"{key}: found beside the option that sets it; expected one of both")
    overrides = [*settings, *arguments.overrides]
    names_model = any(text.startswith(("model", "rollout.engine")) for text in overrides)
    if arguments.recipe == ASK_RECIPE and not names_model:
        raise UsageError(
            "found no --model; expected a run, a folder or a hub id, with --url what the endpoint "
            "calls the model, or a --recipe that has one"
        )
    recipe = load_recipe(arguments.recipe, overrides, model=Recipe).recipe
    meta: dict[str, object] = {"kind": arguments.kind or "text"}
    if arguments.choice:
        meta = {"kind": "choice", "choices": list(arguments.choice)}
    printer = Printer(recipe, arguments.json)
    summary = ask(
        recipe,
        Question("asked", arguments.question, meta=meta),
        printer.turn,
        decision=arguments.decision,
        until_agreed=arguments.until_agreed,
    )
    printer.end(summary)
    return DONE if summary["answer"] is not None else FAILED
