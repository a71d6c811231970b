"""Figures of a run: bars, timelines, courses of training; their style, and which workers are marked as stragglers."""
