"""What the C library does with freed memory."""

import ctypes

KEPT = (
    2**25
)  # largest freed block that is kept for reuse, in bytes; all blocks take at most eight times as much


def keep_freed_memory() -> None:
    """Let the C library keep freed memory, because model-sized vectors are allocated many times per step.

    Fresh pages from the system cost 6 % of a step of a 3-million-parameter network (benchmarks, W1) and 5 % of a
    round of FedBiOAcc with ten stacked runs. Without ``mallopt`` in the library nothing changes.
    """
    trim_threshold, mmap_threshold = -1, -3
    adjust = getattr(ctypes.CDLL(None), "mallopt", None)
    if adjust is not None and adjust(mmap_threshold, KEPT):  # 0 if the library refuses
        adjust(trim_threshold, 8 * KEPT)
