"""The figures of a run (bars, timelines, training curves), their style, and the marks of stragglers."""
