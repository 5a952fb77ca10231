#include "test/plain_bf16_attention.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "test/operand.h"

namespace goat::test {

namespace {
using Index = std::int64_t;
using Floats = std::vector<float>;

float bf16(float value) { return static_cast<float>(rounded_to(DType::bf16, value)); }

float dot(const float* a, const float* b, Index n) {
  float sum = 0;
  for (Index c = 0; c < n; ++c) sum += a[c] * b[c];
  return sum;
}

void add_times(float* sum, float factor, const float* row, Index n) {
  for (Index c = 0; c < n; ++c) sum[c] += factor * row[c];
}

// One head of one sequence, rows next to each other.
class PlainHead {
 public:
  PlainHead(const AttentionProblem& problem, const SavedAttention& saved, Index b, Index h)
      : problem_(problem),
        width_(problem.head_dim),
        scale_(static_cast<float>(problem.scale)),
        slope_(problem.slope.empty() ? 0 : static_cast<float>(problem.slope[h])),
        key_bias_(problem.key_bias.empty() ? nullptr
                                           : &problem.key_bias[(b * problem.heads + h) * problem.t_k]),
        q_(gather(problem.q, problem.t_q, b, h, problem.heads)),
        k_(gather(problem.k, problem.t_k, b, h / problem.group, problem.key_heads())),
        v_(gather(problem.v, problem.t_k, b, h / problem.group, problem.key_heads())),
        dout_(gather(problem.dout, problem.t_q, b, h, problem.heads)),
        saved_out_(gather(saved.out, problem.t_q, b, h, problem.heads)),
        saved_lse_(saved.lse.begin() + (b * problem.heads + h) * problem.t_q,
                   saved.lse.begin() + (b * problem.heads + h + 1) * problem.t_q),
        out(q_.size()),
        lse(problem.t_q),
        s_k(q_.size()),
        s_q(k_.size()),
        dv(k_.size()),
        dkey_bias(problem.t_k),
        dslope(problem.t_k) {
    for (Index i = 0; i < problem.t_q; ++i) {
      const Floats z = logits(i);
      attend(i, z);
      differentiate(i, z);
    }
  }

 private:
  Floats gather(const std::vector<double>& values, Index length, Index b, Index h, Index heads) const {
    Floats rows;
    for (Index t = 0; t < length; ++t)
      for (Index c = 0; c < width_; ++c)
        rows.push_back(static_cast<float>(values[((b * length + t) * heads + h) * width_ + c]));
    return rows;
  }
  float lag(Index i, Index j) const { return static_cast<float>(j - problem_.position(i)); }

  float key_bias(Index i, Index j) const {
    return key_bias_ ? static_cast<float>(key_bias_[j] - key_bias_[problem_.position(i)]) : 0;
  }

  Floats logits(Index i) const {
    Floats z(problem_.keys_seen(i));
    for (Index j = 0; j < static_cast<Index>(z.size()); ++j)
      z[j] = scale_ * dot(&q_[i * width_], &k_[j * width_], width_) + slope_ * lag(i, j) + key_bias(i, j);
    return z;
  }

  void attend(Index i, const Floats& z) {
    const float maximum = *std::max_element(z.begin(), z.end());
    float sum = 0;
    for (const float logit : z) sum += std::exp(logit - maximum);
    lse[i] = maximum + std::log(sum);
    float* row = &out[i * width_];
    for (std::size_t j = 0; j < z.size(); ++j)
      add_times(row, bf16(std::exp(z[j] - maximum) / sum), &v_[static_cast<Index>(j) * width_], width_);
    for (Index c = 0; c < width_; ++c) row[c] = bf16(row[c]);
  }

  void differentiate(Index i, const Floats& z) {
    const float *q = &q_[i * width_], *dout = &dout_[i * width_],
                delta = dot(dout, &saved_out_[i * width_], width_);
    for (Index j = 0; j < static_cast<Index>(z.size()); ++j) {
      const float p = std::exp(z[j] - saved_lse_[i]), s = p * (dot(dout, &v_[j * width_], width_) - delta);
      dkey_bias[j] += s;
      dslope[j] += s * lag(i, j);
      add_times(&s_k[i * width_], bf16(s), &k_[j * width_], width_);
      add_times(&s_q[j * width_], bf16(s), q, width_);
      add_times(&dv[j * width_], bf16(p), dout, width_);
    }
  }

  const AttentionProblem& problem_;
  Index width_;
  float scale_, slope_;
  const double* key_bias_;
  Floats q_, k_, v_, dout_, saved_out_, saved_lse_;

 public:
  Floats out, lse, s_k, s_q, dv, dkey_bias, dslope;
};

// Adds to head h of sequence b of [B, T, heads, d_h].
void add_head(Summed& whole, const Floats& rows, const AttentionProblem& problem, Index b, Index h,
              Index heads) {
  const Index width = problem.head_dim, length = static_cast<Index>(rows.size()) / width;
  for (Index t = 0; t < length; ++t)
    for (Index c = 0; c < width; ++c)
      whole.value[((b * length + t) * heads + h) * width + c] += rows[t * width + c];
}
// Head (b, h) of [B, H, T].
void place_scalars(Summed& whole, const Floats& values, const AttentionProblem& problem, Index b, Index h) {
  std::copy(values.begin(), values.end(),
            whole.value.begin() + (b * problem.heads + h) * static_cast<Index>(values.size()));
}
}  // namespace

AttentionOutputs plain_bf16_attention(const AttentionProblem& problem, Index content_dim, Index lanes,
                                      const SavedAttention& saved) {
  if (!problem.bias.empty()) throw std::invalid_argument("plain_bf16_attention takes no bias");
  const Index query_rows = problem.batch * problem.heads * problem.t_q,
              key_rows = problem.batch * problem.heads * problem.t_k;
  Summed s_k(query_rows * problem.head_dim), s_q(key_rows / problem.group * problem.head_dim);
  AttentionOutputs outputs;
  outputs.out = s_k, outputs.dv = s_q;
  outputs.lse = Summed(query_rows), outputs.dkey_bias = outputs.dslope = Summed(key_rows);
  for (Index b = 0; b < problem.batch; ++b)
    for (Index h = 0; h < problem.heads; ++h) {
      const PlainHead head(problem, saved, b, h);
      add_head(outputs.out, head.out, problem, b, h, problem.heads);
      add_head(s_k, head.s_k, problem, b, h, problem.heads);
      add_head(s_q, head.s_q, problem, b, h / problem.group, problem.key_heads());
      add_head(outputs.dv, head.dv, problem, b, h / problem.group, problem.key_heads());
      place_scalars(outputs.lse, head.lse, problem, b, h);
      place_scalars(outputs.dkey_bias, head.dkey_bias, problem, b, h);
      place_scalars(outputs.dslope, head.dslope, problem, b, h);
    }
  outputs.dq = content_part(s_k, problem, content_dim, problem.scale);
  outputs.dk = content_part(s_q, problem, content_dim, problem.scale);
  outputs.dq_lanes = lanes_part(s_k, problem, problem.heads, content_dim, lanes, 1);
  outputs.dk_lanes = lanes_part(s_q, problem, problem.key_heads(), content_dim, lanes, problem.scale);
  for (Summed* rounded : {&outputs.dq, &outputs.dk, &outputs.dv})
    rounded->value = rounded_to(DType::bf16, rounded->value);
  return outputs;
}

}  // namespace goat::test
