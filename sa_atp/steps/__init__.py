"""One training step: computing, contributing, helping; emulated devices, and stragglers."""
