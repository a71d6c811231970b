"""The switch's loop as compiled code: from the kernel's buffers through the pipeline to the kernel's buffers.

    state           the memory of the loop, and the meaning of its numbers
    arriving        messages of the kernel ──> frames, without a copy
    super_packets   one head for many frames
    wires           frames that cross impaired links
    leaving         packets of the pipeline ──> messages to the kernel
    turn            both, with the pipeline between them
    system          calls of the C library by compiled code
    code            the compiled functions of these modules
    core            the part of the loop that one core runs
    loop            the loop's interface for Python

`arriving`, `super_packets`, `wires`, `leaving` and `turn` share one namespace: they are executed together, compiled or
plain (see `basics/code_cache.py`), and call each other and the operations of `embedded.bits` by name. By name they also
have the arrays of `state`: `code` has each function take them from the frame, and `arrays.pyi` has their types. Their
tests run them plain, with operations that check every index.
"""
