"""Help for stragglers: the ledger of micro-batches, and the decisions about who computes what. Pure. (protocol section
10)
"""
