"""Ticks of a local learner: proposed, looked at, taken or refused."""
