// Operands that may be strided, each with strides of its own: the results are the bits that contiguous ones
// give, and nothing between the rows is touched.
#include <algorithm>
#include <cmath>
#include <vector>

#include "test/attention_operands.h"
#include "test/catch.h"
#include "test/each_variant.h"
#include "test/schedules.h"

using namespace goat;
using namespace goat::test;

namespace {
using Index = std::int64_t;
using Values = std::vector<double>;

// A view whose dimensions but the last have gaps, which are poisoned as all of the view is at first.
class StridedOperand {
 public:
  // Gaps of `gap` elements; of none, the view is contiguous.
  StridedOperand(Device& device, DType dtype, std::vector<Index> shape, const char* name, Index gap)
      : device_(&device), memory_(device, dtype, {elements_with_gaps(shape, gap)}, name) {
    view_ = memory_.tensor();
    view_.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), view_.shape.begin());
    Index stride = 1;
    for (int dim = view_.rank - 1; dim >= 0; --dim) {
      view_.stride[static_cast<std::size_t>(dim)] = stride;
      stride = stride * view_.shape[static_cast<std::size_t>(dim)] + gap;
    }
  }

  operator const Tensor&() const { return view_; }
  Values values() const { return values_of(*device_, view_); }
  void set(const Values& values) {
    Values all = memory_.values();
    std::size_t next = 0;
    for_each_place([&](Index place) { all[static_cast<std::size_t>(place)] = values[next++]; });
    memory_.set(all);
  }

  // Whether what lies between the rows is still as it was.
  bool gaps_are_untouched() const {
    Values all = memory_.values();
    for_each_place([&](Index place) { all[static_cast<std::size_t>(place)] = std::nan(""); });
    return std::all_of(all.begin(), all.end(), [](double value) { return std::isnan(value); });
  }

 private:
  static Index elements_with_gaps(const std::vector<Index>& shape, Index gap) {
    Index elements = 1;
    for (std::size_t dim = shape.size(); dim-- > 0;) elements = elements * shape[dim] + gap;
    return elements;
  }

  template <class Body>
  void for_each_place(Body body) const {
    for (Index i = 0; i < view_.elements(); ++i) {
      Index place = 0, rest = i;
      for (int dim = view_.rank - 1; dim >= 0; --dim) {
        const auto d = static_cast<std::size_t>(dim);
        place += rest % view_.shape[d] * view_.stride[d];
        rest /= view_.shape[d];
      }
      body(place);
    }
  }

  Device* device_;
  Operand memory_;
  Tensor view_;
};

bool are_near(const Values& got, const Values& want) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return got.size() == want.size() && error <= 1e-4 * norm;
}

// make(unit) runs the operations, every operand with gaps that are a multiple of `unit` of its own, or with
// contiguous ones where unit = 0. The same bits are wanted, near ones where sums may be taken in any order.
template <class Make>
void check_layouts(Index unit, Make make, bool same_bits = true) {
  const Values want = make(0), got = make(unit);
  CHECK(std::none_of(want.begin(), want.end(), [](double value) { return std::isnan(value); }));
  CHECK((same_bits ? got == want : are_near(got, want)));
}

Values attention_results(Device& device, const AttentionShape& s, const AttentionProblem& problem, Index unit,
                         bool deterministic) {
  const std::vector<Index> of_queries{s.batch, s.t_q, s.heads, s.head_dim},
      of_keys{s.batch, s.t_k, s.heads, s.head_dim};
  StridedOperand q(device, s.dtype, of_queries, "q", unit), k(device, s.dtype, of_keys, "k", 2 * unit),
      v(device, s.dtype, of_keys, "v", 3 * unit), dq(device, s.dtype, of_queries, "dq", 4 * unit),
      dk(device, s.dtype, of_keys, "dk", 5 * unit), dv(device, s.dtype, of_keys, "dv", 6 * unit);
  q.set(problem.q);
  k.set(problem.k);
  v.set(problem.v);
  DeviceAttention others(device, problem, s.content_dim, s.lanes, s.dtype);
  AttentionForward forward = others.forward_operation();
  forward.q = q;
  forward.k = k;
  forward.v = v;
  device.run(forward);
  AttentionBackward backward = others.backward_operation();
  backward.q = q;
  backward.k = k;
  backward.v = v;
  backward.dq = dq;
  backward.dk = dk;
  backward.dv = dv;
  backward.deterministic = deterministic;
  device.run(backward);
  for (const StridedOperand* operand : {&q, &k, &v, &dq, &dk, &dv}) CHECK(operand->gaps_are_untouched());
  return concatenated(
      {others.out.values(), dq.values(), dk.values(), dv.values(), others.dkey_bias.values()});
}
}  // namespace

TEST_CASE("attention: every strided operand may have a layout of its own") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    for (const Index head_dim :
         {16, 48, 72, 20, 130})  // the tiles of tensor cores, and what they do not take
      for (const bool deterministic : {true, false}) {
        INFO("d_h " << head_dim << (deterministic ? ", deterministic" : ""));
        const AttentionShape shape{2, 33, 70, 2, head_dim, head_dim - 6, 4, true, true, dtype};
        const AttentionProblem problem = random_attention(shape, rng);
        check_layouts(
            head_dim % 8 == 0 ? 8 : 1,
            [&](Index unit) { return attention_results(device, shape, problem, unit, deterministic); },
            deterministic);
      }
  });
}

TEST_CASE("attention decode: q, k and v may have layouts of their own") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    for (const Index head_dim : {16, 20})
      for (const Index t_q : {1, 3}) {
        const AttentionShape shape{2, t_q, 300, 2, head_dim, head_dim - 6, 4, true, true, dtype};
        const AttentionProblem problem = random_attention(shape, rng);
        check_layouts(head_dim % 8 == 0 ? 8 : 1,
                      [&](Index unit) { return attention_results(device, shape, problem, unit, true); });
      }
  });
}

TEST_CASE("swiglu: every strided operand may have a layout of its own") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    for (const Index F : {64, 21}) {
      const Index N = 5;
      const Values g = Operand::normal(device, rng, {N, F}, "gate", 1, dtype).values(),
                   u = Operand::normal(device, rng, {N, F}, "up", 1, dtype).values();
      const auto dout = Operand::normal(device, rng, {N, F}, "dout", 1, dtype);
      check_layouts(F % 8 == 0 ? 8 : 1, [&](Index unit) {
        StridedOperand gate(device, dtype, {N, F}, "gate", unit), up(device, dtype, {N, F}, "up", 2 * unit),
            dgate(device, dtype, {N, F}, "dgate", 3 * unit), dup(device, dtype, {N, F}, "dup", 4 * unit);
        gate.set(g);
        up.set(u);
        const Operand out(device, dtype, {N, F}, "out");
        device.run(SwigluForward{out, gate, up});
        device.run(SwigluBackward{dgate, dup, dout, gate, up});
        for (const StridedOperand* operand : {&gate, &up, &dgate, &dup}) CHECK(operand->gaps_are_untouched());
        return concatenated({out.values(), dgate.values(), dup.values()});
      });
    }
  });
}

TEST_CASE("rope and prior lanes: q and k may have layouts of their own") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    const Index B = 2, T = 5, H = 3, R = 2;
    for (const Index D : {32, 22}) {
      const auto alpha = Operand::normal(device, rng, {H, R}, "alpha"),
                 beta = Operand::normal(device, rng, {H, R}, "beta"),
                 key_bias = Operand::normal(device, rng, {H, T}, "key_bias"),
                 fourier = Operand::normal(device, rng, {T, R, 2}, "fourier"),
                 table = Operand::normal(device, rng, {T, D / 2, 2}, "table");
      const Values x = Operand::normal(device, rng, {B, T, H, D}, "x", 1, dtype).values();
      check_layouts(D % 8 == 0 ? 8 : 1, [&](Index unit) {
        StridedOperand q(device, dtype, {B, T, H, D}, "q", unit),
            k(device, dtype, {B, T, H, D}, "k", 2 * unit);
        q.set(x);
        k.set(x);
        device.run(Rope{q, k, table, 0, false});
        PriorLanesForward lanes;
        lanes.q = q;
        lanes.k = k;
        lanes.alpha = alpha;
        lanes.beta = beta;
        lanes.key_bias = key_bias;
        lanes.fourier = fourier;
        lanes.content_dim = D - 7;
        lanes.scale = 0.5f;
        device.run(lanes);
        CHECK(q.gaps_are_untouched());
        CHECK(k.gaps_are_untouched());
        return concatenated({q.values(), k.values()});
      });
    }
  });
}
