"""The copy-mixture task in NumPy: every token of every sequence is a pure function of (seed, sequence,
position).

x_0 is uniform over the vocabulary. The token after input position i, x_{i+1}, is a copy of x_0 with
probability p_first, a copy of x_{i-1} (x_0 at i = 0) with probability p_prev, and uniform over the vocabulary
otherwise.
"""

from dataclasses import dataclass

import numpy as np

COPY_MIXTURE_STREAM = 2
VALIDATION_BIT = 1 << 63  # validation sequences are those whose index has the top bit set
WORD = (1 << 32) - 1


def philox4x32(counter, key):
    """Philox4x32-10 (Salmon et al., SC 2011). counter: four arrays of 32-bit words, key: two words. Returns
    four arrays of words."""
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(word, dtype=np.uint64) for word in counter))
    k0, k1 = key
    for _ in range(10):
        product0 = c0 * np.uint64(0xD2511F53)
        product1 = c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (product1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            product1 & np.uint64(WORD),
            (product0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            product0 & np.uint64(WORD),
        )
        k0 = (k0 + 0x9E3779B9) & WORD
        k1 = (k1 + 0xBB67AE85) & WORD
    return c0, c1, c2, c3


@dataclass(frozen=True)
class CopyMixture:
    vocab: int
    seq_len: int  # T
    p_first: float
    p_prev: float
    seed: int

    def tokens(self, index):
        """The T + 1 tokens x_0 .. x_T of sequence `index`."""
        position = np.arange(self.seq_len + 1)
        counter = (position, COPY_MIXTURE_STREAM, index & WORD, index >> 32)
        choice, symbol, _, _ = philox4x32(counter, (self.seed & WORD, self.seed >> 32))
        u = choice / 2.0**32
        x = (symbol * np.uint64(self.vocab) >> np.uint64(32)).astype(np.int64)
        for p in range(1, self.seq_len + 1):
            if u[p] < self.p_first:
                x[p] = x[0]
            elif u[p] < self.p_first + self.p_prev:
                x[p] = x[max(p - 2, 0)]
        return x

    def batch(self, step, sequences):
        """Inputs and targets, [sequences, T] each, of 0-based training step `step`."""
        x = np.stack([self.tokens(step * sequences + b) for b in range(sequences)])
        return x[:, :-1], x[:, 1:]

    def bayes_optimal_loss(self):
        """Mean conditional entropy, in nats a token, of x_{i+1} given x_0 .. x_i, over i = 0 .. T-1.

        The best predictor knows x_0 and x_{i-1}, and these coincide with probability q_{i-1}: q_0 = 1 and, as
        x_p copies x_0 or x_{p-2} or is drawn afresh, q_p = p_first + p_prev q_{p-2} + (1 - p_first - p_prev)
        / V.
        """
        chance = (1 - self.p_first - self.p_prev) / self.vocab
        same = np.ones(self.seq_len + 1)
        for p in range(1, self.seq_len + 1):
            same[p] = self.p_first + self.p_prev * same[max(p - 2, 0)] + chance
        coincide = np.array([same[max(i - 1, 0)] for i in range(self.seq_len)])
        merged = _entropy([self.p_first + self.p_prev + chance] + [chance] * (self.vocab - 1))
        apart = _entropy([self.p_first + chance, self.p_prev + chance] + [chance] * (self.vocab - 2))
        return float(np.mean(coincide * merged + (1 - coincide) * apart))


def _entropy(probabilities):
    p = np.array([q for q in probabilities if q > 0])
    return float(-np.sum(p * np.log(p)))
