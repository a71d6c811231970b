"""Recovery from loss: questions, resends, and sums that a rank fetches."""
