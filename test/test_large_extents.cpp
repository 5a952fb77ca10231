// Extents beyond what a GPU's grid takes in y and z: launchers lay them into x, or launch part after part.
#include <algorithm>
#include <functional>
#include <vector>

#include "test/attention_operands.h"
#include "test/catch.h"
#include "test/each_variant.h"
#include "test/schedules.h"
#include "test/tested_device.h"

#ifdef GOAT_HAS_SIMT
#include "test/scoped_options.h"
#endif

using namespace goat;
using namespace goat::test;

namespace {
using Index = std::int64_t;
using Values = std::vector<double>;
}  // namespace

TEST_CASE("rope and prior lanes: match what each sequence gives alone, with 70,000 sequences") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    const Index B = 70000, T = 1, H = 1, D = 8, R = 1;
    const auto table = Operand::normal(device, rng, {T, D / 2, 2}, "table");
    const auto alpha = Operand::normal(device, rng, {H, R}, "alpha"),
               beta = Operand::normal(device, rng, {H, R}, "beta"),
               key_bias = Operand::normal(device, rng, {H, T}, "key_bias"),
               fourier = Operand::normal(device, rng, {T, R, 2}, "fourier");
    const auto one = Operand::normal(device, rng, {1, T, H, D}, "one", 1, dtype);
    const Values row = one.values();
    Values rows;
    for (Index b = 0; b < B; ++b) rows.insert(rows.end(), row.begin(), row.end());
    const auto all = Operand::of(device, rows, {B, T, H, D}, "all", dtype);
    for (const Operand* x : {&one, &all}) {
      Rope rope;
      rope.q = *x;
      rope.fourier = table;
      device.run(rope);
      PriorLanesForward lanes;
      lanes.q = *x;
      lanes.alpha = alpha;
      lanes.beta = beta;
      lanes.key_bias = key_bias;
      lanes.fourier = fourier;
      lanes.content_dim = D - 4;
      lanes.scale = 0.5f;
      device.run(lanes);
    }
    const Values want = one.values(), got = all.values();
    Index wrong = 0;
    for (std::size_t i = 0; i < got.size(); ++i) wrong += got[i] != want[i % want.size()];
    CHECK(wrong == 0);
    CHECK((want != row));
  });
}

TEST_CASE("forget bias: matches what each sequence gives alone, with 70,000 sequences and heads") {
  for (const std::string& name : device_names()) {
    const auto device = open_tested(name);
    Rng rng(fresh_seed());
    const Index B = 35000, T = 2, H = 2;
    const auto one = Operand::normal(*device, rng, {1, T, H}, "gate"),
               of_one = Operand::normal(*device, rng, {1, H, T}, "dkey_bias");
    const auto copies = [](const Values& values) {
      Values all;
      for (Index b = 0; b < B; ++b) all.insert(all.end(), values.begin(), values.end());
      return all;
    };
    const auto gate = Operand::of(*device, copies(one.values()), {B, T, H}, "gate"),
               dkey_bias = Operand::of(*device, copies(of_one.values()), {B, H, T}, "dkey_bias");
    const Operand want(*device, DType::f64, {1, H, T}, "key_bias"),
        got(*device, DType::f64, {B, H, T}, "key_bias"), want_dgate(*device, DType::f32, {1, T, H}, "dgate"),
        dgate(*device, DType::f32, {B, T, H}, "dgate");
    device->run(ForgetBiasForward{want, one, 0});
    device->run(ForgetBiasForward{got, gate, 0});
    CHECK((got.values() == copies(want.values())));
    device->run(ForgetBiasBackward{want_dgate, of_one, one});
    device->run(ForgetBiasBackward{dgate, dkey_bias, gate});
    CHECK((dgate.values() == copies(want_dgate.values())));
  }
}

#ifdef GOAT_HAS_SIMT
namespace {
// A simulated GPU whose grids take few blocks in y and z, for as long as this lives: small shapes then do
// what 65,535 sequences and tiles do on others.
class SmallGrids {
 public:
  explicit SmallGrids(int limit) {
    options_->grid_limit = limit;
    options_->threads = 1;  // atomic sums in one order
  }

 private:
  RestoredOptions options_;
};

// Whether work() gives the same bits with grids of 3 blocks in y and z as with large ones. `work` takes more
// than three of something.
void check_small_grids(const std::function<Values()>& work) {
  Values large, small;
  {
    const SmallGrids grids(65535);
    large = work();
  }
  {
    const SmallGrids grids(3);
    small = work();
  }
  CHECK((small == large));
  CHECK(std::none_of(large.begin(), large.end(), [](double value) { return std::isnan(value); }));
}

template <class Body>
void for_each_simulated(Body body) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::vector<std::string> names = device_names(dtype);
    if (std::find(names.begin(), names.end(), "simt") == names.end()) continue;
    const auto device = open_tested("simt");
    const auto seed = fresh_seed();
    INFO(name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    body(*device, dtype, rng);
  }
}
}  // namespace

TEST_CASE("attention: the same bits where sequences and tiles exceed a grid's y and z") {
  for_each_simulated([](Device& device, DType dtype, Rng& rng) {
    const AttentionShape shapes[] = {{8, 5, 9, 2, 16, 10, 4, true, true, dtype},      // sequences
                                     {2, 260, 260, 1, 16, 10, 4, true, true, dtype},  // tiles
                                     {2, 3, 300, 1, 16, 10, 4, false, false, dtype},
                                     {8, 2, 3, 3, 40, 30, 4, true, true, dtype}};
    for (const AttentionShape& shape : shapes)
      for (const bool deterministic : {true, false}) {
        INFO("B " << shape.batch << ", T_q " << shape.t_q << ", T_k " << shape.t_k);
        const AttentionProblem problem = random_attention(shape, rng);
        check_small_grids([&] {
          DeviceAttention attention(device, problem, shape.content_dim, shape.lanes, shape.dtype);
          attention.forward();
          AttentionBackward op = attention.backward_operation();
          op.deterministic = deterministic;
          device.run(op);
          return concatenated({attention.out.values(), attention.lse.values(), attention.q_gradient(),
                               attention.k_gradient(), attention.v_gradient(), attention.dq_lanes.values(),
                               attention.dk_lanes.values(), attention.dkey_bias.values(),
                               attention.dslope.values()});
        });
      }
  });
}

TEST_CASE("attention decode: the same bits where sequences exceed a grid's z") {
  for_each_simulated([](Device& device, DType dtype, Rng& rng) {
    for (const Index t_q : {1, 3}) {
      const AttentionProblem problem =
          random_attention({8, t_q, 300, 2, 16, 16, 0, true, true, dtype, 2, true}, rng);
      check_small_grids([&] {
        DeviceAttention attention(device, problem, 16, 0, dtype);
        attention.forward();
        return concatenated({attention.out.values(), attention.lse.values()});
      });
    }
  });
}

TEST_CASE("prior lanes, their gradients and rope: the same bits where sequences exceed a grid's y and z") {
  for_each_simulated([](Device& device, DType dtype, Rng& rng) {
    const Index B = 70, T = 5, H = 3, D = 12, R = 2;  // 70 sequences are 5 slices of 16
    const auto alpha = Operand::normal(device, rng, {H, R}, "alpha"),
               beta = Operand::normal(device, rng, {H, R}, "beta"),
               key_bias = Operand::normal(device, rng, {H, T}, "key_bias"),
               fourier = Operand::normal(device, rng, {T, R, 2}, "fourier"),
               table = Operand::normal(device, rng, {T, D / 2, 2}, "table"),
               lanes = Operand::normal(device, rng, {B, H, T, 2 * R}, "lanes"),
               slopes = Operand::normal(device, rng, {B, H, T}, "slopes");
    const Operand positions = Operand::of(device, {0, 1, 2, 3, 4}, {T, 1}, "positions", DType::i32);
    const Values x = Operand::normal(device, rng, {B, T, H, D}, "x", 1, dtype).values();
    check_small_grids([&] {
      const auto q = Operand::of(device, x, {B, T, H, D}, "q", dtype),
                 k = Operand::of(device, x, {B, T, H, D}, "k", dtype);
      PriorLanesForward forward;
      forward.q = q;
      forward.k = k;
      forward.alpha = alpha;
      forward.beta = beta;
      forward.key_bias = key_bias;
      forward.fourier = fourier;
      forward.content_dim = D - 6;
      forward.scale = 0.5f;
      device.run(forward);
      Rope rope;
      rope.q = q;
      rope.k = k;
      rope.fourier = table;
      device.run(rope);
      const auto dalpha = Operand::zeros(device, {H, R}, "dalpha"),
                 dbeta = Operand::zeros(device, {H, R}, "dbeta"),
                 dlambda = Operand::zeros(device, {H}, "dlambda"),
                 dfrequency = Operand::zeros(device, {R}, "dfrequency");
      device.run(PriorLanesBackward{dalpha, dbeta, dlambda, dfrequency, lanes, lanes, slopes, alpha, beta,
                                    fourier, positions});
      return concatenated(
          {q.values(), k.values(), dalpha.values(), dbeta.values(), dlambda.values(), dfrequency.values()});
    });
  });
}

TEST_CASE("linear backward: the same bits where slices or columns exceed a grid's y") {
  for_each_simulated([](Device& device, DType dtype, Rng& rng) {
    const Index N = 1100, I = 2;
    for (const Index O : {8, 131}) {  // columns side by side: 32, or 32 vectors
      const auto dout = Operand::normal(device, rng, {N, O}, "dout", 1, dtype),
                 x = Operand::normal(device, rng, {N, I}, "x", 1, dtype);
      check_small_grids([&] {
        const auto dweight = Operand::zeros(device, {O, I}, "dweight"),
                   dbias = Operand::zeros(device, {O}, "dbias");
        device.run(LinearBackwardWeight{dweight, dbias, dout, x});
        return dbias.values();
      });
    }
  });
}
#endif
