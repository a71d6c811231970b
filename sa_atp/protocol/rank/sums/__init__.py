"""A rank's sums: operations, what it contributes to them, and the headers of its packets."""
