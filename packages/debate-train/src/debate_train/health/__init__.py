"""The health watch: what is looked at while a policy trains, and what is alarming."""

from debate_train.health.detector import Detector, Finding, History
from debate_train.health.settings import DETECTORS, DetectorChoice, Health

__all__ = ["DETECTORS", "Detector", "DetectorChoice", "Finding", "Health", "History"]
