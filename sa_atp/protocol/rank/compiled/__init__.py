"""The common case of a connection as functions over arrays, which numba compiles. (protocol section 5.8)"""
