"""The papers' headlines beside ours: `sa-atp reproduce`."""
