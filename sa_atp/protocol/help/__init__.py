"""Who computes what: the ledger of micro-batches, and the decisions about help. Pure. (protocol section 10)"""
