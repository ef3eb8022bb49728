"""The commands: what they take, print and leave behind."""
