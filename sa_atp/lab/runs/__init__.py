"""Experiments: a plan says what, a backend runs it, records say what happened."""
