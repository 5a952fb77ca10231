// Streams of a simulated GPU that do not wait for each other are found by what their work accesses, when it
// is enqueued and whenever it runs.
#include <optional>
#include <stdexcept>

#include "kernels/cuda/runtime.cuh"
#include "kernels/open/open_device.h"
#include "kernels/simt/streams.h"
#include "test/simulated.h"

using namespace goat;
using namespace goat::test;
using on_simt::StreamOrder;
using on_simt::Streams;

namespace {

constexpr std::int64_t count = 96;
constexpr std::size_t bytes = count * sizeof(float);

// A device and further streams of it. Their work runs when the host waits.
struct Several {
  explicit Several(Streams streams = Streams::late) { options->streams = streams; }

  // What the call throws.
  std::string operator()(const std::function<void()>& call) const { return report_of(call); }
  // `later` waits for all that has been enqueued on `earlier`.
  void order(Device& earlier, Device& later) const {
    const auto event = earlier.make_event();
    earlier.record(*event);
    later.follow(*event);
  }

  RestoredOptions options;
  std::unique_ptr<Device> first = open_device("simt"), second = first->open_stream(),
                          third = first->open_stream();
};

// Floats in device memory.
struct Floats {
  explicit Floats(Device& device, std::int64_t size = count)
      : buffer(device, static_cast<std::size_t>(size) * sizeof(float)),
        tensor(Tensor::of(static_cast<float*>(buffer.data()), {size})) {}
  operator const Tensor&() const { return tensor; }
  void* data() const { return buffer.data(); }
  DeviceBuffer buffer;
  Tensor tensor;
};

// Work on `shared`, with memory of its own for all else.
struct Kind {
  const char* name;  // in the message
  bool writes;
  std::function<void(Device&, const Tensor& shared, const Tensor& own, const HostBuffer& host)> enqueue;
};
const std::vector<Kind> kinds = {
    {"out of fill", true,
     [](auto& d, auto& shared, auto&, auto&) {
       d.run(Fill{shared, 3});
     }},
    {"out of cast", true,
     [](auto& d, auto& shared, auto& own, auto&) {
       d.run(Cast{shared, own});
     }},
    {"x of cast", false,
     [](auto& d, auto& shared, auto& own, auto&) {
       d.run(Cast{own, shared});
     }},
    {"the memory of set_zero", true,
     [](auto& d, auto& shared, auto&, auto&) { d.set_zero(shared.data, bytes); }},
    {"the target of copy", true,
     [](auto& d, auto& shared, auto& own, auto&) { d.copy(shared.data, own.data, bytes); }},
    {"the source of copy", false,
     [](auto& d, auto& shared, auto& own, auto&) { d.copy(own.data, shared.data, bytes); }},
    {"the target of upload", true,
     [](auto& d, auto& shared, auto&, auto&) {
       d.upload(shared.data, std::vector<float>(count).data(), bytes);
     }},
    {"the target of enqueue_upload", true,
     [](auto& d, auto& shared, auto&, auto& host) { d.enqueue_upload(shared.data, host.data(), bytes); }},
    {"the source of enqueue_download", false,
     [](auto& d, auto& shared, auto&, auto& host) { d.enqueue_download(host.data(), shared.data, bytes); }},
    {"the source of download", false, [](auto& d, auto& shared, auto&, auto&) {
       d.download(std::vector<float>(count).data(), shared.data, bytes);
     }}};

}  // namespace

TEST_CASE("simt: two streams race where one of them writes and neither waits for the other") {
  for (const Streams streams : {Streams::at_once, Streams::late, Streams::random, Streams::urgent_first}) {
    const Several three(streams);
    Device &first = *three.first, &second = *three.second;
    const Floats shared(first), own_first(first), own_second(first);
    const HostBuffer host_first(first, bytes), host_second(second, bytes);
    for (const Kind& a : kinds)
      for (const Kind& b : kinds) {
        INFO(a.name << ", then " << b.name << ", streams " << static_cast<int>(streams));
        const bool host_waits = std::string(a.name) == "the source of download";
        const auto enqueue_second = [&] { b.enqueue(second, shared, own_second, host_second); };
        a.enqueue(first, shared, own_first, host_first);
        const std::string report = three(enqueue_second);
        if ((a.writes || b.writes) && !host_waits)
          CHECK_THAT(report,
                     ContainsSubstring("'" + std::string(a.name) + "', which was enqueued before it") &&
                         ContainsSubstring("'" + std::string(b.name) + "' on stream") &&
                         ContainsSubstring("bytes 0 to 383 of an allocation of 384 bytes") &&
                         ContainsSubstring("record an event"));
        else
          CHECK(report == "");
        three.order(first, second);
        CHECK(three(enqueue_second) == "");
        for (Device* device : {&first, &second}) device->synchronize();
      }
  }
}

TEST_CASE("simt: a race between streams leaves the device as it was") {
  const Several three;
  const Floats x(*three.first);
  three.first->run(Fill{x, 1});
  CHECK(three([&] { three.second->run(Fill{x, 2}); }) != "");
  three.second->synchronize();
  three.first->run(Cast{x, x});  // the fill was not enqueued, and nothing of it was noted
  std::vector<float> values(count);
  three.first->download(values.data(), x.data(), bytes);
  CHECK(values == std::vector<float>(count, 1));
}

TEST_CASE("simt: an order of streams that goes over others is seen") {
  const Several three;
  const Floats x(*three.first);
  for (const bool complete : {true, false}) {
    three.first->run(Fill{x, 1});
    three.order(*three.first, *three.second);
    if (complete) three.order(*three.second, *three.third);
    CHECK((three([&] { three.third->run(Fill{x, 2}); }) == "") == complete);
    three.third->synchronize();
  }
}

TEST_CASE("simt: an event orders what was enqueued before it, and no more") {
  const Several three;
  const Floats x(*three.first), y(*three.first);
  const auto event = three.first->make_event();
  three.first->run(Fill{x, 1});
  three.first->record(*event);
  three.first->run(Fill{y, 1});
  three.second->follow(*event);
  CHECK(three([&] { three.second->run(Fill{x, 2}); }) == "");
  CHECK_THAT(three([&] { three.second->run(Fill{y, 2}); }), ContainsSubstring("out of fill"));
  three.first->record(*event);  // again: the order to follow is that of the call
  CHECK_THAT(three([&] { three.second->run(Fill{y, 2}); }), ContainsSubstring("out of fill"));
  three.second->follow(*event);
  CHECK(three([&] { three.second->run(Fill{y, 2}); }) == "");
  CHECK_THAT(three([&] { three.first->run(Fill{x, 3}); }), ContainsSubstring("out of fill"));  // the way back
}

TEST_CASE("simt: what the host has waited for comes before all that it enqueues later") {
  const Several three;
  const Floats x(*three.first), y(*three.first);
  const auto event = three.first->make_event();
  const auto races = [&](const Tensor& on) { return three([&] { three.second->run(Fill{on, 2}); }) != ""; };
  three.first->run(Fill{x, 1});
  three.first->record(*event);
  three.first->run(Fill{y, 1});
  CHECK(races(x));
  three.first->wait(*event);
  CHECK_FALSE(races(x));
  CHECK(races(y));
  three.second->synchronize();  // of the other stream
  CHECK(races(y));
  three.first->synchronize();
  CHECK_FALSE(races(y));
  three.second->run(Cast{x, y});
  float value = 0;
  three.second->download(&value, x.data(), sizeof value);
  CHECK(three([&] { three.first->run(Fill{y, 3}); }) == "");
}

TEST_CASE("simt: streams may share an allocation, but not a byte of it") {
  const Several three;
  const Floats x(*three.first, 4 * count);
  three.first->run(Fill{x.tensor.slice(0, 0, 100), 1});
  CHECK(three([&] { three.second->run(Fill{x.tensor.slice(0, 100, 100), 1}); }) == "");
  CHECK_THAT(three([&] {
               three.third->run(Fill{x.tensor.slice(0, 199, 50), 1});
             }),
             ContainsSubstring("bytes 796 to 799 of an allocation of 1536 bytes of device memory"));
  CHECK(three([&] { three.third->run(Fill{x.tensor.slice(0, 200, 50), 1}); }) == "");
  CHECK(three([&] { three.third->run(Fill{x.tensor.slice(0, 50, 0), 1}); }) == "");  // no bytes at all
}

TEST_CASE("simt: streams that share page-locked memory race as well") {
  const Several three;
  const Floats x(*three.first), y(*three.first);
  const HostBuffer host(*three.first, bytes);
  three.first->enqueue_download(host.data(), x.data(), bytes);
  CHECK_THAT(three([&] { three.second->enqueue_upload(y.data(), host.data(), bytes); }),
             ContainsSubstring("'the target of enqueue_download', which") &&
                 ContainsSubstring("'the source of enqueue_upload' on stream") &&
                 ContainsSubstring("page-locked memory"));
  three.first->synchronize();
}

TEST_CASE("simt: operations on two streams may read the same tensors, and each names what it writes") {
  const Several three;
  Device &first = *three.first, &second = *three.second;
  const Floats x(first, 24), weight(first, 24), out(first, 36), other(first, 36), params(first, 36);
  const auto shaped = [](const Tensor& t, std::int64_t rows) {
    return t.reshape({rows, t.elements() / rows});
  };
  const Tensor rows = shaped(x, 6), matrix = shaped(weight, 6);
  first.run(LinearForward{shaped(out, 6), rows, matrix, {}});
  CHECK(three([&] { second.run(LinearForward{shaped(other, 6), rows, matrix, {}}); }) == "");
  CHECK_THAT(three([&] {
               second.run(LinearForward{shaped(out, 6), rows, matrix, {}});
             }),
             ContainsSubstring("'out of linear_forward'"));
  CHECK_THAT(three([&] { second.run(Fill{weight, 1}); }), ContainsSubstring("'weight of linear_forward'"));

  const DeviceBuffer sum(first, sizeof(double)), state(first, sizeof(StepState));
  const auto add = [&](Device& device) { device.run(AddLoss{static_cast<double*>(sum.data()), x, {}}); };
  add(first);
  CHECK_THAT(three([&] { add(second); }), ContainsSubstring("'sum of add_loss'"));
  const auto update = [&](const Tensor& t) {
    return AdamW{
        .state = static_cast<StepState*>(state.data()), .param = t, .master = {}, .m = t, .v = t, .grad = t};
  };
  first.run(update(params.tensor.slice(0, 0, 18)));
  CHECK(three([&] { second.run(update(params.tensor.slice(0, 18, 18))); }) == "");  // both read the state
  CHECK_THAT(three([&] { second.set_zero(state.data(), sizeof(StepState)); }),
             ContainsSubstring("'state of adamw'") && ContainsSubstring(" reads them"));
}

TEST_CASE("simt: a strided operand counts from its first to its last element") {
  const Several three;
  const Floats both(*three.first, 60), up(*three.first, 30), out(*three.first, 30);
  const Tensor gate = both.tensor.reshape({6, 10}).slice(1, 0, 5);
  three.first->run(SwigluForward{out.tensor.reshape({6, 5}), gate, up.tensor.reshape({6, 5})});
  CHECK_THAT(three([&] {
               three.second->run(Fill{both.tensor.slice(0, 54, 6), 1});
             }),
             ContainsSubstring("'gate of swiglu_forward'") && ContainsSubstring("bytes 216 to 219 "));
  CHECK(three([&] { three.second->run(Fill{both.tensor.slice(0, 55, 5), 1}); }) == "");
}

TEST_CASE("simt: logits are read by the loss alone, and written with their gradient") {
  const Several three;
  const Floats logits(*three.first, 12), losses(*three.first, 3), integers(*three.first, 3);
  const Tensor targets = Tensor::contiguous(integers.data(), DType::i32, {3});
  three.first->set_zero(targets.data, targets.bytes());
  three.first->synchronize();
  const auto loss = [&](bool backward) {
    return CrossEntropy{.logits = logits.tensor.reshape({3, 4}),
                        .losses = losses,
                        .targets = targets,
                        .weights = {},
                        .vocab = 4,
                        .backward = backward};
  };
  const Floats copied(*three.first, 12);
  for (const bool backward : {false, true}) {
    three.first->run(loss(backward));
    CHECK((three([&] { three.second->run(Cast{copied, logits}); }) == "") == !backward);
    for (Device* device : {three.first.get(), three.second.get()}) device->synchronize();
  }
}

TEST_CASE("simt: streams have temporary memory of their own, and find it when they do not") {
  const Several three;
  const std::int64_t n = 40, width = 8;
  struct Operands {
    explicit Operands(Device& device) : dx(device, n * width), weight(device, width), rows(device, n) {}
    Floats dx, weight, rows;
  };
  const Operands a(*three.first), b(*three.first), shared(*three.first);
  const auto backward = [&](const Operands& of) {
    return RmsNormBackward{
        of.dx.tensor.reshape({n, width}),     of.weight,   shared.dx.tensor.reshape({n, width}),
        shared.dx.tensor.reshape({n, width}), shared.rows, shared.weight};
  };
  const std::size_t needed = three.first->workspace(backward(a));
  REQUIRE(needed > 0);
  three.first->run(backward(a));
  CHECK(three([&] { three.second->run(backward(b)); }) == "");

  const DeviceBuffer memory(*three.first, needed);
  const WorkspaceScope first_scope(*three.first, {memory.data(), needed});
  const WorkspaceScope second_scope(*three.second, {memory.data(), needed});
  three.first->run(backward(a));
  CHECK_THAT(three([&] { three.second->run(backward(b)); }),
             ContainsSubstring("'the workspace of rmsnorm_backward', which") &&
                 ContainsSubstring("'the workspace of rmsnorm_backward' on"));
  three.order(*three.first, *three.second);
  CHECK(three([&] { three.second->run(backward(b)); }) == "");
}

TEST_CASE("simt: recorded work accesses memory when it is replayed, on the stream that replays it") {
  const Several three;
  const Floats x(*three.first), y(*three.first);
  const auto graph = three.first->capture([&] { three.first->run(Cast{y, x}); });
  CHECK(three([&] { three.second->run(Fill{x, 1}); }) == "");
  CHECK_THAT(three([&] { three.first->replay(*graph); }), ContainsSubstring("'x of cast' on stream"));
  three.order(*three.second, *three.first);
  three.first->replay(*graph);
  CHECK_THAT(three([&] { three.second->run(Fill{y, 1}); }), ContainsSubstring("'out of cast', which"));
}

TEST_CASE("simt: streams that are recorded race as others do") {
  const Several three;
  const Floats x(*three.first), y(*three.first);
  const auto fork = three.first->make_event();
  for (const bool waits : {true, false})
    for (const bool joins_early : {true, false}) {
      INFO("waits " << waits << ", joins early " << joins_early);
      const std::string report = three([&] {
        three.first->capture([&] {
          three.first->record(*fork);
          if (joins_early) three.second->follow(*fork);
          three.first->run(Fill{x, 1});  // after the event
          if (!joins_early) three.second->follow(*fork);
          if (waits) three.order(*three.first, *three.second);
          three.second->run(Cast{y, x});
          three.order(*three.second, *three.first);
          three.first->run(Fill{y, 1});
        });
      });
      CHECK((report == "") == waits);
      if (!waits) CHECK_THAT(report, ContainsSubstring("'out of fill', which"));
    }
}

TEST_CASE("simt: what is recorded before there is a second stream is known when it is replayed") {
  const auto first = open_device("simt");
  const Floats x(*first);
  const auto graph = first->capture([&] { first->run(Fill{x, 1}); });
  const auto second = first->open_stream();
  second->set_zero(x.data(), bytes);
  CHECK_THAT(report_of([&] { first->replay(*graph); }), ContainsSubstring("'out of fill' on stream"));
}

TEST_CASE("simt: memory that is released may be used again by any stream") {
  const Several three;
  const on_simt::Stream other = on_simt::runtime::create_stream();
  for (const bool released : {true, false}) {
    std::optional<Floats> x(*three.first);
    void* const place = x->data();
    three.first->run(Fill{*x, 1});
    if (released) x.reset();
    CHECK((three([&] { on_simt::note_access(other, place, bytes, true, "a test"); }) == "") == released);
  }
  on_simt::runtime::destroy_stream(other);
}

TEST_CASE("simt: with one stream nothing is watched, and races are not when the option is off") {
  const on_simt::Stream one = on_simt::runtime::create_stream();
  CHECK_FALSE(on_simt::runtime::watches_accesses(one));
  CHECK_FALSE(on_simt::runtime::watches_accesses(nullptr));
  const on_simt::Stream other = on_simt::runtime::create_stream();
  CHECK(on_simt::runtime::watches_accesses(one));
  const DeviceArray<float> x(count);
  on_simt::note_access(one, x, bytes, true, "the one");
  RestoredOptions options;
  options->stream_races = false;
  CHECK_FALSE(on_simt::runtime::watches_accesses(one));
  CHECK(report_of([&] { on_simt::note_access(other, x, bytes, true, "the other"); }) == "");
  options->stream_races = true;
  CHECK_THAT(report_of([&] { on_simt::note_access(other, x, bytes, true, "the other"); }),
             ContainsSubstring("'the other' on stream") && ContainsSubstring("'the one', which"));
  on_simt::runtime::destroy_stream(other);
  CHECK_FALSE(on_simt::runtime::watches_accesses(one));
  on_simt::runtime::destroy_stream(one);
}

TEST_CASE("simt: the end of a stream orders nothing") {
  const Several three;
  const Floats x(*three.first);
  three.first->open_stream()->run(Fill{x, 1});
  CHECK_THAT(three([&] { three.second->run(Fill{x, 2}); }), ContainsSubstring("out of fill"));
}

TEST_CASE("simt: accesses are forgotten when all streams are behind them") {
  StreamOrder order;
  float memory[64];
  const auto note = [&](int stream, int first, int size, bool writes) {
    const MemoryAccess access{memory + first, static_cast<std::size_t>(size) * sizeof(float), writes, "x"};
    order.note(stream, {&access, 1});
  };
  const auto noted = [&] {
    order.forget_what_all_are_behind();
    return order.accesses().size();
  };
  order.add(1);
  note(1, 0, 64, true);
  CHECK(noted() == 0);  // there is no other stream
  order.add(2);
  for (int step = 0; step < 100; ++step) {  // two streams take turns, and the host never waits
    for (int i = 0; i < 8; ++i) note(1, 8 * i, 8, true);
    order.follow(2, order.record(1));
    CHECK(noted() == 0);
    note(2, 0, 64, false);
    note(2, 0, 16, false);
    CHECK(noted() == 2);
    order.follow(1, order.record(2));
  }
  CHECK(noted() == 0);
  for (int i = 0; i < 100; ++i) note(2, 0, 8 + i / 10, i % 2 == 0);  // a stream alone
  CHECK(noted() == 2);
  order.host_follows(order.record(2));
  CHECK(noted() == 0);
  order.add(3);
  note(3, 0, 8, true);
  order.remove(3);
  CHECK(noted() == 1);
  CHECK(report_of([&] { note(1, 7, 1, false); }) != "");
  order.forget(memory, 7 * sizeof(float));
  CHECK(noted() == 1);
  order.forget(memory, 8 * sizeof(float));
  CHECK(noted() == 0);
  CHECK(report_of([&] { note(1, 7, 1, false); }) == "");
}

TEST_CASE("simt: what lies between the rows of an operand, in either order, is not accessed by it") {
  const Several several;
  const Floats memory(*several.first, 3 * count);
  const auto part = [&](std::int64_t number) { return memory.tensor.slice(0, number * count, count); };
  for (const std::int64_t row :
       {0, 2}) {  // the row that is the sum; the other one is `count` behind or before
    Tensor rows = Tensor::of(part(row).as<float>(), {2, count});
    rows.stride[0] = row == 0 ? 2 * count : -2 * count;
    CHECK(several([&] {
            several.second->run(Fill{part(1), 3});
            several.first->run(SumParts{part(row), rows});
          }) == "");
    CHECK_THAT(several([&] {
                 several.second->run(Fill{part(2 - row), 3});
               }),
               ContainsSubstring("'parts of sum_parts'"));
    several.first->synchronize();
    several.second->synchronize();
  }
}
