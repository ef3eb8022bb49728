"""The debates in short form of the tests of rewards."""

from rewards.conftest import hold as hold
