"""What theory predicts of debates: SDRL's model of beliefs, simulated, and its statements."""

from debate_studies.theory.model import (
    BeliefModel,
    FindsRight,
    FixedShare,
    Lift,
    Simulated,
    effective_voters,
    fixed_share_belief,
    lemma_4_5,
    lemma_4_7,
    lemma_e1,
    neighbours,
    neutral_correlation,
    rounds_possible,
    simulate,
    symmetric,
    theorem_4_4,
)
from debate_studies.theory.run_comparison import in_words, lay_beside

__all__ = [
    "BeliefModel",
    "FindsRight",
    "FixedShare",
    "Lift",
    "Simulated",
    "effective_voters",
    "fixed_share_belief",
    "in_words",
    "lay_beside",
    "lemma_4_5",
    "lemma_4_7",
    "lemma_e1",
    "neighbours",
    "neutral_correlation",
    "rounds_possible",
    "simulate",
    "symmetric",
    "theorem_4_4",
]
