// Softplus, which may parametrise a slope, and its derivative.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "test/catch.h"
#include "test/operand.h"
#include "test/schedules.h"
#include "test/tested_device.h"
#include "test/values.h"

using namespace goat;
using namespace goat::test;

TEST_CASE("softplus: value and derivative keep fp32 relative accuracy at any x", "[prior]") {
  for (const std::string& name : device_names()) {
    const auto device = open_tested(name);
    const std::uint64_t seed = fresh_seed();
    Rng rng(seed);
    INFO(name << ", seed " << seed);
    std::vector<double> points = Operand::normal(*device, rng, {300}, "points", 4).values();
    for (const double edge : {1e-6, 16.0, 17.0, 30.0, 80.0, 90.0, 110.0, 1000.0, 3e38})
      for (const double point : {-edge, edge}) points.push_back(point);
    points.push_back(0);
    const auto count = static_cast<std::int64_t>(points.size());
    const Operand x = Operand::of(*device, points, {count}, "x"), out(*device, DType::f32, {count}, "out");
    const Operand dout = Operand::normal(*device, rng, {count}, "dout");
    Operand dx = Operand::zeros(*device, {count}, "dx");
    const Operand accumulated = Operand::normal(*device, rng, {count}, "accumulated");
    const std::vector<double> in = x.values(), gradient = dout.values(), start = accumulated.values();
    device->run(SoftplusForward{out, x});
    device->run(SoftplusBackward{dx, dout, x});
    device->run(SoftplusBackward{accumulated, dout, x});

    const std::vector<double> got = out.values(), got_dx = dx.values();
    std::vector<double> want_accumulated;
    for (std::size_t i = 0; i < in.size(); ++i) {
      INFO("x = " << in[i]);
      const double want = std::max(in[i], 0.0) + std::log1p(std::exp(-std::abs(in[i]))),
                   derivative = 1 / (1 + std::exp(-in[i]));
      CHECK(std::abs(got[i] - want) <= 0x1p-22 * want + 0x1p-149);  // the smallest fp32
      CHECK(std::abs(got_dx[i] - gradient[i] * derivative) <=
            0x1p-22 * std::abs(gradient[i]) * derivative + 0x1p-149);
      want_accumulated.push_back(start[i] + gradient[i] * derivative);
    }
    CHECK_FP32(accumulated.values(), want_accumulated);
    check_schedules(name, [&] {
      dx.set(start);
      device->run(SoftplusForward{out, x});
      device->run(SoftplusBackward{dx, dout, x});
      return plus(out.values(), dx.values());
    });
  }
}
