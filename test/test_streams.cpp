// Events, copies that the host does not wait for, and recorded work, on every device.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "kernels/workspace_survey.h"
#include "test/each_variant.h"

using namespace goat;
using goat::test::for_each_variant;
using goat::test::Operand;
using goat::test::Rng;

namespace {

constexpr std::int64_t rows = 37, width = 24;

// A layer forward and backward: matrix products, kernels that take temporary memory, set_zero and copy.
struct Layer {
  Layer(Device& device, DType dtype, Rng& rng)
      : x(Operand::normal(device, rng, {rows, width}, "x", 1, dtype)),
        weight(Operand::normal(device, rng, {width, width}, "weight", 1, dtype)),
        scale(Operand::normal(device, rng, {width}, "scale")),
        shift(Operand::zeros(device, {width}, "shift")),
        hidden(device, dtype, {rows, width}, "hidden"),
        out(device, dtype, {rows, width}, "out"),
        dx(device, dtype, {rows, width}, "dx"),
        mean(device, DType::f32, {rows}, "mean"),
        rstd(device, DType::f32, {rows}, "rstd"),
        dscale(device, DType::f32, {width}, "dscale"),
        dshift(device, DType::f32, {width}, "dshift"),
        dweight(device, DType::f32, {width, width}, "dweight") {}

  void enqueue(Device& device) const {
    device.run(LinearForward{hidden, x, weight, {}});
    device.run(LayerNormForward{.out = out,
                                .mean = mean,
                                .rstd = rstd,
                                .sum = {},
                                .x = hidden,
                                .residual = {},
                                .weight = scale,
                                .bias = shift});
    for (const Operand* gradient : {&dscale, &dshift, &dweight})
      device.set_zero(gradient->tensor().data, gradient->tensor().bytes());
    device.copy(dx.tensor().data, out.tensor().data, out.tensor().bytes());
    device.run(LayerNormBackward{dx, dscale, dshift, out, hidden, mean, rstd, scale});
    device.run(LinearBackwardWeight{dweight, {}, dx, x});
  }

  std::vector<std::vector<double>> results() const {
    return {out.values(), dx.values(), dscale.values(), dshift.values(), dweight.values()};
  }
  std::size_t workspace(const Device& device) const {
    WorkspaceSurvey survey(device);
    enqueue(survey);
    return survey.bytes();
  }

  Operand x, weight, scale, shift, hidden, out, dx, mean, rstd, dscale, dshift, dweight;
};

std::string complaint_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

// Calls body(device, dtype, rng) for the devices that record their work.
template <class Body>
void for_each_recording_variant(Body body) {
  for_each_variant([&](Device& device, DType dtype, Rng& rng) {
    if (device.can_capture()) return body(device, dtype, rng);
    CHECK_THAT(complaint_of([&] { device.capture([] {}); }), ContainsSubstring(device.info().name));
    DeviceGraph graph;
    CHECK_THAT(complaint_of([&] { device.replay(graph); }), ContainsSubstring(device.info().name));
  });
}

}  // namespace

TEST_CASE("events: the host waits for what was enqueued before them") {
  for_each_variant([](Device& device, DType dtype, Rng&) {
    const Operand out(device, dtype, {1000}, "out");
    const auto before = device.make_event(), after = device.make_event();
    device.wait(*after);  // without a record
    device.record(*before);
    for (const float value : {1.0f, 2.0f, 3.0f}) device.run(Fill{out, value});
    device.record(*after);
    device.wait(*after);
    CHECK(device.seconds_between(*before, *after) >= 0);
    CHECK(out.values() == std::vector<double>(1000, 3.0));
    device.record(*after);  // again
    device.wait(*after);
    CHECK(device.seconds_between(*before, *after) >= 0);
  });
}

TEST_CASE("enqueued copies: two slots of host memory, each reused when its event is complete") {
  for_each_variant([](Device& device, DType, Rng& rng) {
    constexpr std::size_t count = 515, bytes = count * sizeof(std::int32_t);
    const DeviceBuffer on_device(device, bytes), copied(device, bytes);
    struct Slot {
      HostBuffer in, out;
      std::unique_ptr<DeviceEvent> complete;
      std::vector<std::int32_t> expected;
      explicit Slot(Device& slot_device)
          : in(slot_device, bytes), out(slot_device, bytes), complete(slot_device.make_event()) {}
    } slots[] = {Slot(device), Slot(device)};
    const auto check = [&](Slot& slot) {
      device.wait(*slot.complete);
      const auto* got = static_cast<const std::int32_t*>(slot.out.data());
      CHECK(std::equal(slot.expected.begin(), slot.expected.end(), got));
    };
    for (int step = 0; step < 6; ++step) {
      Slot& slot = slots[step % 2];
      check(slot);  // nothing is expected of the first two
      slot.expected.resize(count);
      for (std::int32_t& value : slot.expected) value = static_cast<std::int32_t>(rng());
      std::memcpy(slot.in.data(), slot.expected.data(), bytes);
      device.enqueue_upload(on_device.data(), slot.in.data(), bytes);
      device.copy(copied.data(), on_device.data(), bytes);
      device.enqueue_download(slot.out.data(), copied.data(), bytes);
      device.record(*slot.complete);
    }
    for (Slot& slot : slots) {
      CHECK(reinterpret_cast<std::uintptr_t>(slot.in.data()) % 256 == 0);
      check(slot);
    }
  });
}

TEST_CASE("upload: the host memory may be reused at once, whatever memory it is") {
  for_each_variant([](Device& device, DType, Rng&) {
    std::vector<double> ordinary(1000, 1.0), result(2000);
    const std::size_t bytes = ordinary.size() * sizeof(double);
    const HostBuffer page_locked(device, bytes);
    std::memcpy(page_locked.data(), ordinary.data(), bytes);
    const DeviceBuffer buffer(device, 2 * bytes);
    device.upload(buffer.data(), ordinary.data(), bytes);
    device.upload(static_cast<char*>(buffer.data()) + bytes, page_locked.data(), bytes);
    std::fill(ordinary.begin(), ordinary.end(), 2.0);
    std::memcpy(page_locked.data(), ordinary.data(), bytes);
    device.download(result.data(), buffer.data(), 2 * bytes);
    CHECK(result == std::vector<double>(2000, 1.0));
  });
}

TEST_CASE("recorded work: a replay gives the bits of the work itself, from the inputs of its time") {
  for_each_recording_variant([](Device& device, DType dtype, Rng& rng) {
    Layer layer(device, dtype, rng);
    const DeviceBuffer memory(device, layer.workspace(device));
    const WorkspaceScope scope(device, {memory.data(), memory.bytes()});
    const auto graph = device.capture([&] { layer.enqueue(device); });
    for (int input = 0; input < 3; ++input) {
      layer.x.set(Operand::normal(device, rng, {rows, width}, "input", 1, dtype).values());
      device.replay(*graph);
      const auto replayed = layer.results();
      for (int again = 0; again < 2; ++again) device.replay(*graph);
      CHECK(layer.results() == replayed);
      layer.enqueue(device);
      CHECK(layer.results() == replayed);
    }
  });
}

TEST_CASE("recorded work: what needs the host is refused, and the device can be used again") {
  for_each_recording_variant([](Device& device, DType dtype, Rng& rng) {
    const Layer layer(device, dtype, rng);
    const Operand out(device, dtype, {100}, "out");
    const HostBuffer host(device, 100);
    const auto event = device.make_event();
    const auto graph = device.capture([&] { device.run(Fill{out, 5}); });
    void* const data = out.tensor().data;
    DeviceBuffer released(device, 100);
    const std::vector<std::pair<std::string, std::function<void()>>> calls = {
        {"upload", [&] { device.upload(data, host.data(), 100); }},
        {"download", [&] { device.download(host.data(), data, 100); }},
        {"enqueue_upload", [&] { device.enqueue_upload(data, host.data(), 100); }},
        {"enqueue_download", [&] { device.enqueue_download(host.data(), data, 100); }},
        {"synchronize", [&] { device.synchronize(); }},
        {"allocate", [&] { device.allocate(100); }},
        {"allocate_host", [&] { device.allocate_host(100); }},
        {"wait", [&] { device.wait(*event); }},
        {"capture", [&] { device.capture([] {}); }},
        {"replay", [&] { device.replay(*graph); }},
        {"recorded work needs a workspace of", [&] { layer.enqueue(device); }}};  // without a given workspace
    for (const auto& call : calls) {
      INFO(call.first);
      CHECK_THAT(complaint_of([&] { device.capture(call.second); }), ContainsSubstring(call.first));
      device.run(Fill{out, 3});
      CHECK(out.values() == std::vector<double>(100, 3.0));
    }
    const auto releasing = device.capture([&] {
      released = DeviceBuffer();
      device.run(Fill{out, 4});
    });
    device.replay(*releasing);
    CHECK(out.values() == std::vector<double>(100, 4.0));
  });
}

TEST_CASE("recorded work: an exception of the work ends the recording") {
  for_each_recording_variant([](Device& device, DType dtype, Rng&) {
    const Operand out(device, dtype, {100}, "out");
    CHECK_THROWS_WITH(device.capture([&] {
      device.run(Fill{out, 1});
      throw std::runtime_error("thrown by the work");
    }),
                      "thrown by the work");
    device.run(Fill{out, 2});
    const auto graph = device.capture([&] { device.run(Fill{out, 3}); });
    CHECK(out.values() == std::vector<double>(100, 2.0));
    device.replay(*graph);
    CHECK(out.values() == std::vector<double>(100, 3.0));
  });
}

TEST_CASE("events and recorded work of another kind of device are refused") {
  for_each_recording_variant([](Device& device, DType, Rng&) {
    DeviceEvent event;
    DeviceGraph graph;
    CHECK_THAT(complaint_of([&] { device.record(event); }), ContainsSubstring("another kind of device"));
    CHECK_THAT(complaint_of([&] { device.wait(event); }), ContainsSubstring("another kind of device"));
    CHECK_THAT(complaint_of([&] { device.replay(graph); }), ContainsSubstring("another kind of device"));
  });
}
