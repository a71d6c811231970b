"""Help for stragglers: the ledger of micro-batches, and its decisions. Pure. (protocol section 10)"""
