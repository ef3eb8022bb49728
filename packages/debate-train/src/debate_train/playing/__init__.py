"""The debates of each step: played when wanted, or ahead of training."""
