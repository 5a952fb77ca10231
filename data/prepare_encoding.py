"""Batches of text, encoded by all cores at once.

By threads, as the tokenizers release Python's lock: processes were not faster (dev/results/prepare.md).
"""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

BATCHES_AHEAD = 2  # read while every core has one


def encoded(batches, encode, workers):
    """Yields (batch, encode(batch.texts)), in order. A bounded number of batches is in memory."""
    pool, waiting = ThreadPoolExecutor(workers), deque()
    try:
        for batch in batches:
            waiting.append((batch, pool.submit(encode, batch.texts)))
            if len(waiting) >= workers + BATCHES_AHEAD:
                yield finished(waiting)
        while waiting:
            yield finished(waiting)
    finally:
        pool.shutdown(cancel_futures=True)


def finished(waiting):
    batch, future = waiting.popleft()
    return batch, future.result()
