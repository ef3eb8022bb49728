"""From debate transcripts to credits: peer votes, verified answers and debate metrics."""

from typing import TYPE_CHECKING

from debate_protocol import lazy_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from debate_rewards.answer_checking import Verdict as Verdict
    from debate_rewards.answer_checking import answer_classes as answer_classes
    from debate_rewards.answer_checking import answer_reward as answer_reward
    from debate_rewards.answer_checking import check as check
    from debate_rewards.answer_checking import check_many as check_many
    from debate_rewards.answer_checking import same_answer as same_answer
    from debate_rewards.answer_checking import verify as verify
    from debate_rewards.answer_rewards import Majority as Majority
    from debate_rewards.answer_rewards import MajorityJudge as MajorityJudge
    from debate_rewards.answer_rewards import TruthJudge as TruthJudge
    from debate_rewards.answer_rewards import Verifiable as Verifiable
    from debate_rewards.conl import ConlReward as ConlReward
    from debate_rewards.decisions import Agreed as Agreed
    from debate_rewards.decisions import AtMost as AtMost
    from debate_rewards.decisions import GateRule as GateRule
    from debate_rewards.decisions import Informative as Informative
    from debate_rewards.decisions import InOrder as InOrder
    from debate_rewards.decisions import bradley_terry as bradley_terry
    from debate_rewards.decisions import central as central
    from debate_rewards.decisions import confidence as confidence
    from debate_rewards.decisions import majority as majority
    from debate_rewards.decisions import peer_vote as peer_vote
    from debate_rewards.estimates import Estimate as Estimate
    from debate_rewards.estimates import Paired as Paired
    from debate_rewards.estimates import bootstrap_interval as bootstrap_interval
    from debate_rewards.estimates import paired as paired
    from debate_rewards.judged import JudgedReward as JudgedReward
    from debate_rewards.learnability import Learnability as Learnability
    from debate_rewards.metrics import debate_metrics as debate_metrics
    from debate_rewards.metrics import debate_statistics as debate_statistics
    from debate_rewards.metrics import question_values as question_values
    from debate_rewards.reward import Credit as Credit
    from debate_rewards.reward import Reward as Reward
    from debate_rewards.reward import RewardConfig as RewardConfig
    from debate_rewards.reward import RewardContext as RewardContext
    from debate_rewards.reward import RewardNeeds as RewardNeeds
    from debate_rewards.reward import RewardNote as RewardNote
    from debate_rewards.reward import RewardPart as RewardPart
    from debate_rewards.reward import Score as Score
    from debate_rewards.rewards import REWARDS as REWARDS
    from debate_rewards.rewards import Component as Component
    from debate_rewards.rewards import Fading as Fading
    from debate_rewards.rewards import Labelled as Labelled
    from debate_rewards.rewards import Mixed as Mixed
    from debate_rewards.rewards import RewardChoice as RewardChoice
    from debate_rewards.rewards import get_reward as get_reward
    from debate_rewards.turn_rewards import Certainty as Certainty
    from debate_rewards.turn_rewards import Overlong as Overlong
    from debate_rewards.turn_rewards import PartialTrajectory as PartialTrajectory
    from debate_rewards.turn_rewards import Persuasion as Persuasion
    from debate_rewards.turn_rewards import StateValue as StateValue
    from debate_rewards.turn_rewards import state_values as state_values
    from debate_rewards.v2 import V2 as V2
    from debate_rewards.vote_rewards import BradleyTerry as BradleyTerry
    from debate_rewards.vote_rewards import WinMinusLoss as WinMinusLoss
    from debate_rewards.vote_rewards import WinRate as WinRate

__getattr__, __dir__, __all__ = lazy_names(__name__)
