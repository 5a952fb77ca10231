// Attention and its gradients in float64, written naively: the oracle of the attention tests.
#pragma once

#include <cstdint>
#include <vector>

namespace goat::test {

// Operands, row-major: q, dout [B, T_q, H, d_h], k, v [B, T_k, H_k, d_h], slope [H] or empty, bias [H, T_q,
// T_k] or empty (added to the logits), key_bias [B, H, T_k] or empty.
struct AttentionProblem {
  std::int64_t batch = 1, t_q = 1, t_k = 1, heads = 1, head_dim = 1;
  double scale = 1;
  bool causal = true;
  std::vector<double> q, k, v, dout, slope, bias, key_bias;
  std::int64_t group = 1;  // H / H_k

  std::int64_t key_heads() const { return heads / group; }                       // H_k
  std::int64_t position(std::int64_t query) const { return query + t_k - t_q; }  // i'
  std::int64_t keys_seen(std::int64_t query) const { return causal ? position(query) + 1 : t_k; }
};

// A result, and for each element the sum of the absolute values of the terms it is the sum of.
struct Summed {
  std::vector<double> value, terms;
  explicit Summed(std::int64_t elements = 0) : value(static_cast<std::size_t>(elements)), terms(value) {}
  void add(std::int64_t at, double term, double magnitude) {
    value[static_cast<std::size_t>(at)] += term;
    terms[static_cast<std::size_t>(at)] += magnitude;
  }
};

struct AttentionValues {
  Summed out;               // [B, T_q, H, d_h]
  std::vector<double> lse;  // [B, H, T_q]
  // [B, H, T_q], the largest sum of the absolute values of a logit's terms: what lse is exact to
  std::vector<double> lse_terms;
  std::vector<double> p;  // [B, H, T_q, T_k]
};

struct AttentionGradients {
  Summed s_k;        // [B, T_q, H, d_h]: S k; dq = scale S k
  Summed s_q;        // [B, T_k, H_k, d_h]: S^T q; dk = scale S^T q
  Summed dv;         // [B, T_k, H_k, d_h]
  Summed dkey_bias;  // [B, H, T_k]
  Summed dslope;     // [B, H, T_k]
};

// Everything that AttentionForward and AttentionBackward give, in their layout: dq and dk with zeros on the
// lanes, dq_lanes and dk_lanes beside them.
struct AttentionOutputs {
  Summed out, lse, dq, dk, dv, dq_lanes, dk_lanes, dkey_bias, dslope;
};

AttentionValues attention(const AttentionProblem& problem);
AttentionGradients attention_gradients(const AttentionProblem& problem);
AttentionOutputs attention_outputs(const AttentionProblem& problem, std::int64_t content_dim,
                                   std::int64_t lanes);

// scale times the content of [B, T, heads, d_h], zeros on the lanes; and scale times the first `lanes`
// coordinates after it, as [B, heads, T, lanes].
Summed content_part(const Summed& rows, const AttentionProblem& problem, std::int64_t content_dim,
                    double scale);
Summed lanes_part(const Summed& rows, const AttentionProblem& problem, std::int64_t heads,
                  std::int64_t content_dim, std::int64_t lanes, double scale);

}  // namespace goat::test
