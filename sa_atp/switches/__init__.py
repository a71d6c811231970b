"""Switches and what controls them: the embedded P4 target, P4Runtime, the control plane, compiled programs."""
