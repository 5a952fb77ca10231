// Recorded work of two streams: Device::capture on one of them, which the other one joins.
#include <stdexcept>

#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/operand.h"

using namespace goat;
using goat::test::Operand;
using goat::test::Rng;

namespace {

constexpr std::int64_t rows = 37, width = 24;

// A device that records its work, another stream of it, and events.
struct Two {
  explicit Two(const std::string& name)
      : first(open_device(name)),
        second(first->open_stream()),
        fork(first->make_event()),
        join(first->make_event()) {}
  std::unique_ptr<Device> first, second;
  std::unique_ptr<DeviceEvent> fork, join;

  void begin_second() const {
    first->record(*fork);
    second->follow(*fork);
  }
  void end_second() const {
    second->record(*join);
    first->follow(*join);
  }
};

// Calls body(streams) for the devices that record their work.
template <class Body>
void for_each_recording(Body body) {
  for (const std::string& name : test::device_names()) {
    if (!open_device(name)->can_capture()) continue;
    INFO(name);
    body(Two(name));
  }
}

std::string complaint_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

// A step as ranks compute it: the first stream computes two gradients, the second one moves the first of them
// meanwhile, and the first one goes on with both.
struct Step {
  Step(const Two& streams, Rng& rng)
      : two(streams),
        x(Operand::normal(*two.first, rng, {rows, width}, "x")),
        dout(Operand::normal(*two.first, rng, {rows, width}, "dout")),
        first_gradient(Operand::zeros(*two.first, {width, width}, "first_gradient")),
        second_gradient(Operand::zeros(*two.first, {width, width}, "second_gradient")),
        moved(*two.first, DType::f32, {width, width}, "moved"),
        sums(*two.first, DType::f64, {1}, "sums") {
    two.first->synchronize();
  }

  void enqueue() const {
    two.first->set_zero(first_gradient.tensor().data, first_gradient.tensor().bytes());
    two.first->run(LinearBackwardWeight{first_gradient, {}, dout, x});
    two.begin_second();
    two.second->copy(moved.tensor().data, first_gradient.tensor().data, moved.tensor().bytes());
    two.second->run(SquaredSums{sums, moved});
    two.first->run(LinearBackwardWeight{second_gradient, {}, x, dout});
    two.end_second();
    two.first->run(Cast{first_gradient, moved});
    two.first->run(LinearBackwardWeight{first_gradient, {}, x, x});
  }
  void reset() const { two.first->set_zero(second_gradient.tensor().data, second_gradient.tensor().bytes()); }
  std::vector<std::vector<double>> results() const {
    return {first_gradient.values(), second_gradient.values(), moved.values(), sums.values()};
  }

  const Two& two;
  Operand x, dout, first_gradient, second_gradient, moved, sums;
};

// The streams do what they did before a recording that has failed.
void check_usable(const Two& two) {
  const Operand x(*two.first, DType::f32, {100}, "x"), y(*two.first, DType::f32, {100}, "y");
  two.first->run(Fill{x, 5});
  two.begin_second();
  two.second->run(Cast{y, x});
  two.end_second();
  two.second->synchronize();
  CHECK(y.values() == std::vector<double>(100, 5));
  two.first->wait(*two.join);
  const auto graph = two.first->capture([&] { two.first->run(Fill{x, 6}); });
  two.first->replay(*graph);
  CHECK(x.values() == std::vector<double>(100, 6));
}

}  // namespace

TEST_CASE("recorded streams: a replay gives the bits of the work itself, from the inputs of its time") {
  for_each_recording([](const Two& two) {
    Rng rng(test::fresh_seed());
    Step step(two, rng);
    const auto graph = two.first->capture([&] { step.enqueue(); });
    CHECK(step.second_gradient.values() == std::vector<double>(width * width, 0));
    for (int input = 0; input < 3; ++input) {
      step.x.set(Operand::normal(*two.first, rng, {rows, width}, "input").values());
      two.first->synchronize();
      step.reset();
      two.first->replay(*graph);
      const auto replayed = step.results();
      step.reset();
      step.enqueue();
      two.second->synchronize();
      CHECK(step.results() == replayed);
      CHECK(replayed[3][0] > 0);
    }
  });
}

TEST_CASE("recorded streams: work of another stream that is not joined is refused") {
  for_each_recording([](const Two& two) {
    const Operand x(*two.first, DType::f32, {100}, "x"), y(*two.first, DType::f32, {100}, "y");
    const auto not_joined = ContainsSubstring("work of another stream was not joined");
    CHECK_THAT(complaint_of([&] {
                 two.first->capture([&] {
                   two.begin_second();
                   two.second->run(Fill{x, 1});
                 });
               }),
               not_joined);
    check_usable(two);
    CHECK_THAT(complaint_of([&] {
                 two.first->capture([&] {
                   two.begin_second();
                   two.end_second();
                   two.second->run(Fill{x, 1});
                 });
               }),
               not_joined);
    check_usable(two);
    CHECK_THAT(complaint_of([&] {
                 two.first->capture([&] {
                   two.begin_second();
                   two.second->run(Fill{x, 1});
                   two.second->record(*two.join);  // which nobody follows
                 });
               }),
               not_joined);
    check_usable(two);
  });
}

TEST_CASE("recorded streams: work may come back over a third stream") {
  for_each_recording([](const Two& two) {
    const auto third = two.first->open_stream();
    const Operand x(*two.first, DType::f32, {100}, "x");
    const auto graph = two.first->capture([&] {
      two.begin_second();
      two.second->run(Fill{x, 7});
      two.second->record(*two.join);
      third->follow(*two.join);
      third->run(Cast{x, x});
      third->record(*two.join);
      two.first->follow(*two.join);
    });
    two.first->replay(*graph);
    CHECK(x.values() == std::vector<double>(100, 7));
  });
}

TEST_CASE("recorded streams: events do not lead into a recording, nor out of it") {
  for_each_recording([](const Two& two) {
    const auto outside = two.first->make_event(), never = two.first->make_event();
    two.second->record(*outside);
    const auto not_of_it = ContainsSubstring("recorded in the same Device::capture");
    for (DeviceEvent* event : {outside.get(), never.get()}) {
      CHECK_THAT(complaint_of([&] { two.first->capture([&] { two.first->follow(*event); }); }), not_of_it);
      check_usable(two);
    }
    CHECK_THAT(complaint_of([&] {
                 two.first->capture([&] {
                   two.begin_second();
                   two.second->follow(*outside);
                 });
               }),
               not_of_it);
    check_usable(two);

    const auto inside = two.first->make_event();
    const auto graph = two.first->capture([&] { two.first->record(*inside); });
    for (int use = 0; use < 2; ++use) {  // before and after a replay
      CHECK_THAT(complaint_of([&] { two.second->follow(*inside); }), ContainsSubstring("has ended"));
      CHECK_THAT(complaint_of([&] { two.first->wait(*inside); }), ContainsSubstring("Device::capture"));
      CHECK_THAT(complaint_of([&] { two.first->seconds_between(*inside, *inside); }),
                 ContainsSubstring("Device::capture"));
      two.first->replay(*graph);
    }
    CHECK_THAT(complaint_of([&] { two.first->capture([&] { two.first->follow(*inside); }); }),
               ContainsSubstring("has ended"));
    check_usable(two);
    two.first->record(*inside);  // again
    two.second->follow(*inside);
    two.first->wait(*inside);
  });
}

TEST_CASE("recorded streams: what needs the host is refused on every stream while one records") {
  for_each_recording([](const Two& two) {
    const Operand x(*two.first, DType::f32, {100}, "x"), table(*two.first, DType::f32, {8, 4}, "table");
    const Operand dout(*two.first, DType::f32, {6, 4}, "dout"), tokens(*two.first, DType::i32, {6}, "tokens");
    const HostBuffer host(*two.first, 400);
    const auto graph = two.first->capture([&] { two.first->run(Fill{x, 1}); });
    void* const data = x.tensor().data;
    Device& second = *two.second;
    const std::vector<std::pair<std::string, std::function<void()>>> calls = {
        {"upload", [&] { second.upload(data, host.data(), 400); }},
        {"download", [&] { second.download(host.data(), data, 400); }},
        {"enqueue_upload", [&] { second.enqueue_upload(data, host.data(), 400); }},
        {"enqueue_download", [&] { second.enqueue_download(host.data(), data, 400); }},
        {"synchronize", [&] { second.synchronize(); }},
        {"allocate", [&] { second.allocate(100); }},
        {"allocate_host", [&] { second.allocate_host(100); }},
        {"wait", [&] { second.wait(*two.fork); }},
        {"capture", [&] { second.capture([] {}); }},
        {"replay", [&] { second.replay(*graph); }},
        {"recorded work needs a workspace of", [&] {
           second.run(EmbeddingBackward{table, dout, tokens});
         }}};
    for (const auto& call : calls)
      for (const bool joined : {true, false}) {
        INFO(call.first << (joined ? ", joined" : ""));
        CHECK_THAT(complaint_of([&] {
                     two.first->capture([&] {
                       if (joined) two.begin_second();
                       call.second();
                     });
                   }),
                   ContainsSubstring(call.first));
        check_usable(two);
      }
  });
}

TEST_CASE("recorded streams: memory that either stream releases meanwhile is released afterwards") {
  for_each_recording([](const Two& two) {
    const Operand x(*two.first, DType::f32, {100}, "x");
    DeviceBuffer from_first(*two.first, 100), from_second(*two.second, 100);
    const auto graph = two.first->capture([&] {
      two.begin_second();
      two.second->run(Fill{x, 1});
      from_second = DeviceBuffer();
      from_first = DeviceBuffer();
      two.end_second();
    });
    two.first->replay(*graph);
    CHECK(x.values() == std::vector<double>(100, 1));
  });
}

TEST_CASE("recorded streams: an exception of the work ends the recording of both") {
  for_each_recording([](const Two& two) {
    CHECK_THROWS_WITH(two.first->capture([&] {
      two.begin_second();
      throw std::runtime_error("thrown by the work");
    }),
                      "thrown by the work");
    check_usable(two);
  });
}
