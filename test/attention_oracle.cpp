#include "test/attention_oracle.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace goat::test {

namespace {
using Index = std::int64_t;

// One head of one sequence.
struct Head {
  const AttentionProblem& problem;
  Index b, h;

  Index query(Index i) const { return ((b * problem.t_q + i) * problem.heads + h) * problem.head_dim; }
  Index key(Index j) const {
    return ((b * problem.t_k + j) * problem.key_heads() + h / problem.group) * problem.head_dim;
  }
  Index query_scalar(Index i) const { return (b * problem.heads + h) * problem.t_q + i; }
  Index key_scalar(Index j) const { return (b * problem.heads + h) * problem.t_k + j; }
  Index pair(Index i, Index j) const { return query_scalar(i) * problem.t_k + j; }

  double content_term(Index i, Index j, Index c) const {
    return problem.scale * problem.q[query(i) + c] * problem.k[key(j) + c];
  }
  // The absolute values of the terms of the content, and of the whole logit, added up.
  double logit_terms(Index i, Index j) const {
    double terms = std::abs(logit(i, j));
    for (Index c = 0; c < problem.head_dim; ++c) terms += std::abs(content_term(i, j, c));
    return terms;
  }

  double logit(Index i, Index j) const {
    double z = 0;
    for (Index c = 0; c < problem.head_dim; ++c) z += content_term(i, j, c);
    if (!problem.slope.empty()) z += problem.slope[h] * static_cast<double>(j - problem.position(i));
    if (!problem.key_bias.empty())
      z += problem.key_bias[key_scalar(j)] - problem.key_bias[key_scalar(problem.position(i))];
    if (!problem.bias.empty()) z += problem.bias[(h * problem.t_q + i) * problem.t_k + j];
    return z;
  }
};

template <class Visit>
void for_each_head(const AttentionProblem& problem, Visit visit) {
  for (Index b = 0; b < problem.batch; ++b)
    for (Index h = 0; h < problem.heads; ++h) visit(Head{problem, b, h});
}

void attend(const Head& head, AttentionValues& values) {
  const AttentionProblem& problem = head.problem;
  for (Index i = 0; i < problem.t_q; ++i) {
    const Index seen = problem.keys_seen(i);
    double* p = values.p.data() + head.pair(i, 0);
    for (Index j = 0; j < seen; ++j) p[j] = head.logit(i, j);
    const double maximum = *std::max_element(p, p + seen);
    double sum = 0;
    for (Index j = 0; j < seen; ++j) sum += std::exp(p[j] - maximum);
    values.lse[head.query_scalar(i)] = maximum + std::log(sum);
    const auto largest = static_cast<Index>(std::max_element(p, p + seen) - p);
    values.lse_terms[head.query_scalar(i)] = head.logit_terms(i, largest);
    for (Index j = 0; j < seen; ++j) {
      p[j] = std::exp(p[j] - maximum) / sum;
      for (Index c = 0; c < problem.head_dim; ++c) {
        const double term = p[j] * problem.v[head.key(j) + c];
        values.out.add(head.query(i) + c, term, std::abs(term));
      }
    }
  }
}

// <a, b> and the sum of its terms' absolute values.
struct Product {
  double value = 0, terms = 0;
  Product(const double* a, const double* b, Index n) {
    for (Index c = 0; c < n; ++c) value += a[c] * b[c], terms += std::abs(a[c] * b[c]);
  }
};

void differentiate(const Head& head, const AttentionValues& values, AttentionGradients& gradients) {
  const AttentionProblem& problem = head.problem;
  for (Index i = 0; i < problem.t_q; ++i) {
    const double *dout = problem.dout.data() + head.query(i), *q = problem.q.data() + head.query(i);
    const Product delta(dout, values.out.value.data() + head.query(i), problem.head_dim);
    for (Index j = 0; j < problem.keys_seen(i); ++j) {
      const double p = values.p[head.pair(i, j)], *k = problem.k.data() + head.key(j);
      const Product dp(dout, problem.v.data() + head.key(j), problem.head_dim);
      const double s = p * (dp.value - delta.value), magnitude = p * (dp.terms + delta.terms);
      const auto lag = static_cast<double>(j - problem.position(i));
      gradients.dkey_bias.add(head.key_scalar(j), s, magnitude);
      gradients.dslope.add(head.key_scalar(j), s * lag, magnitude * std::abs(lag));
      for (Index c = 0; c < problem.head_dim; ++c) {
        gradients.s_k.add(head.query(i) + c, s * k[c], magnitude * std::abs(k[c]));
        gradients.s_q.add(head.key(j) + c, s * q[c], magnitude * std::abs(q[c]));
        gradients.dv.add(head.key(j) + c, p * dout[c], std::abs(p * dout[c]));
      }
    }
  }
}
}  // namespace

AttentionValues attention(const AttentionProblem& problem) {
  const Index rows = problem.batch * problem.t_q * problem.heads;
  AttentionValues values{Summed(rows * problem.head_dim), std::vector<double>(rows),
                         std::vector<double>(rows), std::vector<double>(rows * problem.t_k)};
  for_each_head(problem, [&](const Head& head) { attend(head, values); });
  return values;
}

AttentionGradients attention_gradients(const AttentionProblem& problem) {
  const AttentionValues values = attention(problem);
  const Index queries = problem.batch * problem.t_q * problem.heads,
              keys = problem.batch * problem.t_k * problem.heads,
              key_rows = problem.batch * problem.t_k * problem.key_heads() * problem.head_dim;
  AttentionGradients gradients{Summed(queries * problem.head_dim), Summed(key_rows), Summed(key_rows),
                               Summed(keys), Summed(keys)};
  for_each_head(problem, [&](const Head& head) { differentiate(head, values, gradients); });
  return gradients;
}

Summed content_part(const Summed& rows, const AttentionProblem& problem, Index content_dim, double scale) {
  Summed content(static_cast<Index>(rows.value.size()));
  for (Index n = 0; n < static_cast<Index>(rows.value.size()); ++n)
    if (n % problem.head_dim < content_dim) content.add(n, scale * rows.value[n], scale * rows.terms[n]);
  return content;
}

Summed lanes_part(const Summed& rows, const AttentionProblem& problem, Index heads, Index content_dim,
                  Index lanes, double scale) {
  const Index width = problem.head_dim,
              length = static_cast<Index>(rows.value.size()) / (problem.batch * heads * width);
  Summed part(problem.batch * heads * length * lanes);
  Index to = 0;
  for (Index b = 0; b < problem.batch; ++b)
    for (Index h = 0; h < heads; ++h)
      for (Index t = 0; t < length; ++t)
        for (Index lane = 0; lane < lanes; ++lane) {
          const Index from = ((b * length + t) * heads + h) * width + content_dim + lane;
          part.add(to++, scale * rows.value[from], scale * rows.terms[from]);
        }
  return part;
}

AttentionOutputs attention_outputs(const AttentionProblem& problem, Index content_dim, Index lanes) {
  AttentionValues values = attention(problem);
  AttentionGradients gradients = attention_gradients(problem);
  Summed lse(static_cast<Index>(values.lse.size()));
  for (std::size_t n = 0; n < values.lse.size(); ++n)
    lse.add(static_cast<Index>(n), values.lse[n], std::abs(values.lse[n]));
  return {std::move(values.out),
          std::move(lse),
          content_part(gradients.s_k, problem, content_dim, problem.scale),
          content_part(gradients.s_q, problem, content_dim, problem.scale),
          std::move(gradients.dv),
          lanes_part(gradients.s_k, problem, problem.heads, content_dim, lanes, 1),
          lanes_part(gradients.s_q, problem, problem.key_heads(), content_dim, lanes, problem.scale),
          std::move(gradients.dkey_bias),
          std::move(gradients.dslope)};
}

}  // namespace goat::test
