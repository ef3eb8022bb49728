"""Whether an agent says anything new when it speaks again."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal

from debate_protocol import Transcript
from debate_protocol.forms import DebateForm
from debate_train.evaluation import EvaluationMode, Plays, Values


class SecondThoughts(EvaluationMode):
    """Compares the first and the last turn of agent 0, in some debates of each question."""

    type: Literal["second_thoughts"] = "second_thoughts"
    debates: int = 2

    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """Return the recipe's own debate, as often as wanted."""
        return (Plays(form, range(self.debates)),)

    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """Return the names of both figures; the first has a row in the table of results."""
        return {"new_words": "new words", "longer": ""}

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Return the share of words that are new, and how often the last turn is the longer."""
        new, longer = defaultdict(list), defaultdict(list)
        for debate in played[0]:
            said = [turn.text.split() for turn in debate.turns if turn.agent == 0]
            if len(said) > 1 and said[-1]:
                new[debate.question.id].append(fmean(word not in said[0] for word in said[-1]))
                longer[debate.question.id].append(len(said[-1]) > len(said[0]))
        found = {"new_words": new, "longer": longer}
        return {name: {q: fmean(one) for q, one in of.items()} for name, of in found.items()}
