// Streams of the simulated device: when their work runs, what waits for it, and which mistakes that shows.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>

#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/runtime.cuh"
#include "kernels/simt/streams.h"
#include "test/simulated.h"

using namespace goat::test;

namespace goat::GOAT_TARGET {
namespace {

using Values = std::vector<float>;

__global__ void affine(float* y, const float* x, float scale, float shift, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) y[i] = scale * x[i] + shift;
}
__global__ void trapped() {
  if (threadIdx.x == 3) __trap();
}

// Notes the order in which the blocks run.
__global__ void numbered(int* number, int* next) {
  if (threadIdx.x == 0) number[blockIdx.x] = atomicAdd(next, 1);
}

constexpr int side = 12, count = side * side;
constexpr std::size_t bytes = count * sizeof(float);
Values counting(float first) {
  Values values(count);
  for (int i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = first + static_cast<float>(i) / 64;
  return values;
}

// Options of one test, and two streams, of which the second is urgent. What happens when a wait is missing is
// tried here, so that it must not be refused.
struct TwoStreams {
  ScopedOptions scope;
  Stream first = runtime::create_stream(), second = runtime::create_stream(runtime::Priority::urgent);
  explicit TwoStreams(Streams streams, std::uint64_t seed = 1) {
    scope->streams = streams;
    scope->stream_races = false;
    scope->seed = seed;
  }
  TwoStreams(const TwoStreams&) = delete;
  TwoStreams& operator=(const TwoStreams&) = delete;
  ~TwoStreams() {
    for (const Stream stream : {first, second}) runtime::destroy_stream(stream);
  }
};

struct OwnedEvent {
  Event event = runtime::create_event();
  OwnedEvent() = default;
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;
  ~OwnedEvent() { runtime::destroy_event(event); }
  operator Event() const { return event; }
};

using PageLocked = std::unique_ptr<float, void (*)(void*) noexcept>;
PageLocked page_locked(const Values& values) {
  PageLocked memory(static_cast<float*>(runtime::allocate_host(bytes)), runtime::release_host);
  std::copy(values.begin(), values.end(), memory.get());
  return memory;
}
Values values_at(const float* memory) { return Values(memory, memory + count); }

void enqueue_affine(Stream stream, float* y, const float* x, float scale, float shift) {
  enqueue(affine, dim3(3), dim3(64), 0, stream, y, x, scale, shift, count);
}

enum class Mistake { none, second_does_not_wait, first_does_not_wait, source_overwritten, result_read_early };

// The first stream doubles an input, the second multiplies it by a matrix, the first adds 3 to the product.
Values run_program(Streams streams, std::uint64_t seed = 1, Mistake mistake = Mistake::none) {
  const TwoStreams two(streams, seed);
  const DeviceArray<float> input(count), doubled(count), matrix(count), product(count), copied(count);
  const PageLocked source = page_locked(counting(1)), result = page_locked(counting(0));
  const OwnedEvent is_doubled, is_multiplied, is_complete;
  Values factor = counting(-1);

  runtime::enqueue_upload(input, source.get(), bytes, two.first);
  if (mistake == Mistake::source_overwritten) source.get()[5] = 1000;
  enqueue_affine(two.first, doubled, input, 2, 0);
  runtime::record(is_doubled, two.first);

  runtime::set_zero(product, bytes, two.second);
  runtime::upload(matrix, factor.data(), bytes, two.second);
  std::fill(factor.begin(), factor.end(), 1e6f);  // staged, so that this does not matter
  if (mistake != Mistake::second_does_not_wait) runtime::stream_wait(two.second, is_doubled);
  const auto square = [](float* data) { return Tensor::of<float>(data, {side, side}); };
  Gemm(two.second)
      .multiply({.out = square(product),
                 .left = {square(doubled), false},
                 .right = {square(matrix), true},
                 .accumulate = true},
                nullptr);
  runtime::record(is_multiplied, two.second);

  if (mistake != Mistake::first_does_not_wait) runtime::stream_wait(two.first, is_multiplied);
  runtime::copy(copied, product, bytes, two.first);
  enqueue_affine(two.first, copied, copied, 1, 3);
  runtime::enqueue_download(result.get(), copied, bytes, two.first);
  runtime::record(is_complete, two.first);
  if (mistake != Mistake::result_read_early) runtime::wait(is_complete);
  Values values = values_at(result.get());
  runtime::synchronize(two.first);
  return values;
}

bool same_bits(const Values& a, const Values& b) { return std::memcmp(a.data(), b.data(), bytes) == 0; }

// Whether some order shows the mistake: by another result, which may be poison.
bool found(Mistake mistake, Streams streams, int seeds) {
  const Values right = run_program(Streams::at_once);
  for (int seed = 1; seed <= seeds; ++seed)
    if (!same_bits(run_program(streams, static_cast<std::uint64_t>(seed), mistake), right)) return true;
  return false;
}

std::uint64_t host_waits_of(const std::function<void()>& action) {
  reset_counters();
  action();
  return counters().host_waits;
}

}  // namespace
}  // namespace goat::GOAT_TARGET

using namespace goat::GOAT_TARGET;

TEST_CASE("simt: streams and events give the same bits whenever work runs") {
  const Values right = run_program(Streams::at_once);
  double sum = 0;  // of row 0 and column 0
  for (int k = 0; k < side; ++k) sum += 2.0 * (1 + k / 64.0) * (-1 + k / 64.0);
  CHECK(std::abs(right[0] - (sum + 3)) < 1e-4);
  CHECK(same_bits(run_program(Streams::late), right));
  CHECK(same_bits(run_program(Streams::urgent_first), right));
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    CHECK(same_bits(run_program(Streams::random, seed), right));
  }
}

TEST_CASE("simt: a stream that does not wait for another one is found") {
  CHECK(found(Mistake::second_does_not_wait, Streams::random, 20));
  CHECK(found(Mistake::first_does_not_wait, Streams::random, 20));
  CHECK(found(Mistake::first_does_not_wait, Streams::late, 1));
  CHECK(found(Mistake::second_does_not_wait, Streams::urgent_first, 1));
  CHECK_FALSE(found(Mistake::first_does_not_wait, Streams::at_once, 1));
}

TEST_CASE("simt: a host that does not wait for its copies is found") {
  for (const Mistake mistake : {Mistake::source_overwritten, Mistake::result_read_early}) {
    CHECK(found(mistake, Streams::late, 1));
    CHECK_FALSE(found(mistake, Streams::at_once, 1));
  }
  const Values early = run_program(Streams::late, 1, Mistake::result_read_early);
  CHECK(std::all_of(early.begin(), early.end(), [](float value) { return std::isnan(value); }));
}

TEST_CASE("simt: late work runs when the host waits for it, and no more than that") {
  const TwoStreams two(Streams::late);
  const DeviceArray<float> x(counting(1)), y(count), z(count), other(count);
  const OwnedEvent event;
  enqueue_affine(two.first, y, x, 2, 0);
  runtime::record(event, two.first);
  enqueue_affine(two.first, z, x, 3, 0);
  enqueue_affine(two.second, other, x, 4, 0);
  CHECK(std::isnan(y[0]));
  runtime::wait(event);
  CHECK(y[0] == 2);
  CHECK((std::isnan(z[0]) && std::isnan(other[0])));
  runtime::synchronize(two.first);
  CHECK(z[0] == 3);
  CHECK(std::isnan(other[0]));
}

TEST_CASE("simt: urgent work runs as soon as what it follows is complete, and other work as late") {
  const TwoStreams two(Streams::urgent_first);
  const DeviceArray<float> x(counting(1)), y(count), z(count), doubled(count), tripled(count);
  const OwnedEvent is_doubled, is_copied;
  enqueue_affine(two.second, doubled, x, 2, 0);
  CHECK(doubled[0] == 2);
  enqueue_affine(two.first, y, x, 2, 0);
  runtime::record(is_doubled, two.first);
  enqueue_affine(two.first, z, x, 3, 0);
  runtime::stream_wait(two.second, is_doubled);
  enqueue_affine(two.second, tripled, y, 3, 0);
  runtime::record(is_copied, two.second);
  CHECK((std::isnan(y[0]) && std::isnan(z[0]) && std::isnan(tripled[0])));
  CHECK_FALSE(runtime::is_complete(is_copied));
  runtime::wait(is_doubled);
  CHECK(tripled[0] == 6);  // nobody has waited for it
  CHECK(runtime::is_complete(is_copied));
  CHECK(std::isnan(z[0]));

  runtime::record(is_doubled, two.first);
  runtime::stream_wait(two.second, is_doubled);
  enqueue_affine(two.second, tripled, z, 3, 0);
  runtime::synchronize(two.second);  // which needs the other stream
  CHECK(tripled[0] == 9);
}

TEST_CASE("simt: another thread may ask for an event while the work of a stream takes long") {
  const TwoStreams two(Streams::late);
  const OwnedEvent before, after;
  std::atomic<bool> running = false, asked = false;
  runtime::record(before, two.first);
  append(two.first, [&] {
    running = true;
    for (int tenths = 0; !asked && tenths < 300; ++tenths)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  runtime::record(after, two.first);
  std::thread waiting([&] { runtime::synchronize(two.first); });
  while (!running) std::this_thread::yield();
  const bool before_complete = runtime::is_complete(before), after_complete = runtime::is_complete(after);
  asked = true;
  waiting.join();
  CHECK(before_complete);
  CHECK_FALSE(after_complete);  // true if is_complete() has waited for the work
  CHECK(runtime::is_complete(after));
}

TEST_CASE("simt: memory is released after the work that uses it, on every stream") {
  const TwoStreams two(Streams::late);
  const DeviceArray<float> y(count), z(count);
  void* const memory = runtime::allocate(bytes);
  auto* x = static_cast<float*>(memory);
  runtime::upload(x, counting(1).data(), bytes, two.first);
  const OwnedEvent uploaded;
  runtime::record(uploaded, two.first);
  runtime::stream_wait(two.second, uploaded);
  enqueue_affine(two.first, y, x, 2, 0);
  enqueue_affine(two.second, z, x, 3, 0);
  runtime::release(memory);
  CHECK(y[0] == 2);
  CHECK(z[0] == 3);
}

TEST_CASE("simt: an option that changes leaves the order of a stream as it is") {
  TwoStreams two(Streams::late);
  const DeviceArray<float> x(counting(1)), y(count);
  const OwnedEvent event;
  enqueue_affine(two.first, y, x, 2, 0);
  runtime::record(event, two.first);
  two.scope->streams = Streams::at_once;
  runtime::stream_wait(two.second, event);
  CHECK(y[0] == 2);
  two.scope->streams = Streams::late;
  enqueue_affine(two.first, y, y, 2, 0);
  two.scope->streams = Streams::at_once;
  enqueue_affine(two.first, y, y, 1, 1);
  CHECK(y[0] == 5);
}

TEST_CASE("simt: the options of a launch are those of its call") {
  TwoStreams two(Streams::late);
  const DeviceArray<int> number(4), next(std::vector<int>{0});
  two.scope->order = Order::descending;
  enqueue(numbered, dim3(4), dim3(32), 0, two.first, number, next);
  two.scope->order = Order::ascending;
  runtime::synchronize(two.first);
  CHECK(number.values() == std::vector<int>{3, 2, 1, 0});
}

TEST_CASE("simt: an error that nothing waited for is printed") {
  const std::string report = report_of_child([] {
    const TwoStreams two(Streams::late);
    enqueue(trapped, dim3(1), dim3(32), 0, two.first);
  });
  CHECK_THAT(report, ContainsSubstring("trapped (test_simt_streams.cpp") &&
                         ContainsSubstring("when the stream was destroyed"));
}

TEST_CASE("simt: the error of late work is thrown by the wait that runs it, and ends the queue") {
  const TwoStreams two(Streams::late);
  const DeviceArray<float> x(counting(1)), y(count), z(count);
  const OwnedEvent behind;
  const auto plant = [&] {
    enqueue(trapped, dim3(1), dim3(32), 0, two.first);
    runtime::record(behind, two.first);
    enqueue_affine(two.first, y, x, 2, 0);
    runtime::stream_wait(two.second, behind);
    enqueue_affine(two.second, z, x, 3, 0);
  };
  const auto names_the_kernel = ContainsSubstring("trapped (test_simt_streams.cpp");
  plant();
  CHECK_THAT(report_of([&] { runtime::synchronize(two.first); }), names_the_kernel);
  CHECK(report_of([&] { runtime::synchronize(two.first); }) == "");
  CHECK_THAT(report_of([&] { runtime::synchronize(two.second); }), names_the_kernel);
  plant();
  CHECK_THAT(report_of([&] { runtime::wait(behind); }), names_the_kernel);
  CHECK_THAT(report_of([&] { runtime::seconds_between(behind, behind); }), ContainsSubstring("not complete"));
  CHECK(report_of([&] { enqueue_affine(two.first, x, x, 1, 0); }) == "");  // the error was thrown once
  CHECK_THAT(report_of([&] { runtime::synchronize(two.second); }), names_the_kernel);
  plant();
  runtime::release(runtime::allocate(1));  // runs everything and cannot throw
  CHECK_THAT(report_of([&] { enqueue_affine(two.first, x, x, 1, 0); }), names_the_kernel);
  CHECK_THAT(report_of([&] { runtime::record(behind, two.second); }), names_the_kernel);
  CHECK((std::isnan(y[0]) && std::isnan(z[0])));
  enqueue_affine(two.first, y, x, 2, 0);
  runtime::synchronize(two.first);
  CHECK(y[0] == 2);
}

TEST_CASE("simt: work that a GPU refuses is refused by the call, whenever work runs") {
  for (const Streams streams : {Streams::at_once, Streams::late, Streams::random, Streams::urgent_first}) {
    const TwoStreams two(streams);
    const DeviceArray<float> device(count);
    Values ordinary(count);
    CHECK_THAT(report_of([&] { enqueue(trapped, dim3(1), dim3(2048), 0, two.first); }),
               ContainsSubstring("trapped (test_simt_streams.cpp") && ContainsSubstring("cannot start"));
    CHECK_THAT(report_of([&] { runtime::copy(device, ordinary.data(), bytes, two.first); }),
               ContainsSubstring("copy of 576 bytes") && ContainsSubstring("no device allocation"));
    CHECK_THAT(report_of([&] { runtime::set_zero(device, bytes + 1, two.first); }),
               ContainsSubstring("set_zero of 577 bytes"));
    for (const auto& text :
         {report_of([&] { runtime::enqueue_upload(device, ordinary.data(), bytes, two.first); }),
          report_of([&] { runtime::enqueue_download(ordinary.data(), device, bytes, two.first); })})
      CHECK_THAT(text, ContainsSubstring("Device::allocate_host"));
    const PageLocked host = page_locked(counting(0));
    CHECK_THAT(report_of([&] { runtime::enqueue_upload(device, host.get() + 1, bytes, two.first); }),
               ContainsSubstring("Device::allocate_host"));
    runtime::synchronize(two.first);
  }
}

TEST_CASE("simt: page-locked memory that is released before its copy has run is noticed") {
  const TwoStreams two(Streams::late);
  const DeviceArray<float> device(count);
  runtime::enqueue_upload(device, page_locked(counting(1)).get(), bytes, two.first);
  CHECK_THAT(report_of([&] { runtime::synchronize(two.first); }),
             ContainsSubstring("enqueue_upload") && ContainsSubstring("no longer"));
}

TEST_CASE("simt: events take the time of the work before them") {
  for (const Streams streams : {Streams::at_once, Streams::late}) {
    const TwoStreams two(streams);
    const DeviceArray<float> x(counting(1));
    const OwnedEvent first, last;
    CHECK_THAT(report_of([&] { runtime::seconds_between(first, last); }), ContainsSubstring("call wait()"));
    runtime::record(first, two.first);
    for (int i = 0; i < 10; ++i) enqueue_affine(two.first, x, x, 1, 0);
    runtime::record(last, two.first);
    if (streams == Streams::late)
      CHECK_THAT(report_of([&] { runtime::seconds_between(first, last); }), ContainsSubstring("call wait()"));
    runtime::wait(last);
    CHECK(runtime::seconds_between(first, last) > 0);
    CHECK(runtime::seconds_between(last, first) < 0);
  }
}

TEST_CASE("simt: the waits of the host are counted") {
  const TwoStreams two(Streams::late);
  const DeviceArray<float> x(counting(1));
  const OwnedEvent event;
  Values values(count);
  CHECK(host_waits_of([&] {
          enqueue_affine(two.first, x, x, 2, 0);
          runtime::upload(x, values.data(), bytes, two.first);
          runtime::record(event, two.first);
          runtime::stream_wait(two.second, event);
        }) == 0);
  CHECK(host_waits_of([&] { runtime::wait(event); }) == 1);
  CHECK(host_waits_of([&] { runtime::synchronize(two.first); }) == 1);
  CHECK(host_waits_of([&] { runtime::download(values.data(), x, bytes, two.first); }) == 1);
}

TEST_CASE("simt: a thread that captures does not ask whether an event is complete, others may") {
  const Stream stream = runtime::create_stream(), other = runtime::create_stream();
  const Event event = runtime::create_event();
  runtime::record(event, other);
  runtime::synchronize(other);
  runtime::begin_capture(stream);
  CHECK_THROWS_WITH(runtime::is_complete(event), ContainsSubstring("the capture is lost"));
  bool complete = false;
  std::thread([&] { complete = runtime::is_complete(event); }).join();
  CHECK(complete);
  runtime::abandon_capture(stream);
  CHECK(runtime::is_complete(event));
  runtime::begin_capture(stream);
  runtime::destroy_graph(runtime::end_capture(stream));
  CHECK(runtime::is_complete(event));
  runtime::destroy_event(event);
  runtime::destroy_stream(other);
  runtime::destroy_stream(stream);
}

TEST_CASE("simt: recorded work runs at each replay, with what is in memory then") {
  for (const Streams streams : {Streams::at_once, Streams::late, Streams::random, Streams::urgent_first}) {
    const TwoStreams two(streams);
    const DeviceArray<float> x(counting(1)), y(count), z(count);
    runtime::begin_capture(two.first);
    enqueue_affine(two.first, y, x, 2, 1);
    runtime::copy(z, y, bytes, two.first);
    CHECK_THROWS_AS(runtime::synchronize(two.first), std::logic_error);
    CHECK_THROWS_AS(runtime::begin_capture(two.first), std::logic_error);
    const Graph graph = runtime::end_capture(two.first);
    runtime::synchronize(two.first);
    CHECK((std::isnan(y[0]) && std::isnan(z[0])));
    for (const float value : {1.0f, 7.0f}) {
      runtime::upload(x, counting(value).data(), bytes, two.first);
      runtime::replay(graph, two.first);
      if (streams == Streams::late) CHECK((std::isnan(z[0]) || z[0] == 3));
      runtime::synchronize(two.first);
      CHECK(z[0] == 2 * value + 1);
    }
    runtime::destroy_graph(graph);
  }
}
