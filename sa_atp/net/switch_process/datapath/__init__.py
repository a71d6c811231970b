"""The switch's loop as compiled code: from the kernel's buffers through the pipeline to the kernel's buffers.

    state           the memory that it works on, and what its numbers mean
    arriving        messages of the kernel ──> frames where they lie
    super_packets   one head for many frames
    leaving         what the pipeline makes ──> messages to the kernel
    turn            both, with the pipeline between them
    system          calls of the C library, as compiled code makes them
    code            all of these, compiled
    core            what one core has of it
    loop            what Python sees of it

`arriving`, `super_packets`, `leaving` and `turn` are one namespace: they are executed together, compiled or plain (see
`basics/kept_code.py`), and call each other and the operations of `embedded.bits` by name. Plain, with operations that look
at every index, is how their tests run them.
"""
