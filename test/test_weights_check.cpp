// WeightsCheck: which ranks and which parameter are named when the ranks' weights differ in single bits.
#include <omp.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/forked_ranks.h"
#include "test/operand.h"
#include "test/rank_threads.h"
#include "train/replicas/weights_check.h"

using goat::Device;
using goat::DType;
using goat::MemoryPlan;
using goat::ParameterRole;
using goat::ParameterSet;
using goat::RankGroup;
using goat::test::ForkedRanks;
using goat::test::Variant;

namespace {

const std::vector<std::string> names = {"first", "second", "third", "last"};

// Parameters of both dtypes, in two units; some end in the middle of a word of the hash's kernel.
class Weights {
 public:
  Weights(Device& device, DType dtype) : device_(device), parameters_(dtype) {
    parameters_.declare(names[0], {70, 50}, ParameterRole::matrix, {.std = 1});
    parameters_.declare(names[1], {33}, ParameterRole::bias, {.std = 1});
    parameters_.begin_unit();
    parameters_.declare(names[2], {5, 3}, ParameterRole::vector, {.std = 1});
    parameters_.declare(names[3], {1}, ParameterRole::vector, {.constant = 0});
    parameters_.plan(memory_, true);
    check_.plan(memory_, parameters_);
    memory_.allocate(device);
    parameters_.bind();
    parameters_.initialize(device, 7);
  }

  // The bits of an element, as they are stored.
  std::uint32_t bits(const std::string& name, std::int64_t element) {
    const auto [place, width] = at(name, element);
    std::uint32_t bits = 0;
    device_.download(&bits, place, width);
    return bits;
  }
  void change(const std::string& name, std::int64_t element, std::uint32_t by) {
    const std::uint32_t changed = bits(name, element) ^ by;
    const auto [place, width] = at(name, element);
    device_.upload(place, &changed, width);
  }

  // "equal", or what is thrown.
  std::string compared(RankGroup& group) {
    try {
      check_.compare(device_, parameters_, group, "step 300");
    } catch (const goat::WeightsDiffer& error) {
      return error.what();
    }
    return "equal";
  }

 private:
  std::pair<char*, std::size_t> at(const std::string& name, std::int64_t element) {
    const goat::Tensor& value = parameters_.at(name).value;
    const std::size_t width = value.dtype == DType::bf16 ? 2 : 4;
    return {static_cast<char*>(value.data) + static_cast<std::size_t>(element) * width, width};
  }

  Device& device_;
  ParameterSet parameters_;
  MemoryPlan memory_;
  goat::WeightsCheck check_;
};

// What each of `size` ranks is told after it has changed its weights.
std::vector<std::string> told(const Variant& mode, int size,
                              const std::function<void(int rank, Weights&)>& change) {
  const int port = goat::test::free_port();
  ForkedRanks ranks(size, [&](int rank) {
    omp_set_num_threads(1);  // the threads of the parent are not here
    const auto device = goat::open_device(mode.device);
    Weights weights(*device, mode.dtype);
    change(rank, weights);
    RankGroup group(goat::test::launch_of_rank(rank, size, port), {}, goat::test::RankSetup::quick());
    std::string text = weights.compared(group);
    group.finish();
    return text;
  });
  std::vector<std::string> texts;
  for (int rank = 0; rank < size; ++rank) texts.push_back(ranks.report(rank));
  return texts;
}

// `odd`: "rank 1, rank 3", without hosts and pids, which are not known here.
void check_named(const std::vector<std::string>& texts, const std::string& odd,
                 const std::string& parameter) {
  for (const std::string& text : texts) CHECK(text == texts.front());
  std::string shown = texts.front();
  for (std::size_t at; (at = shown.find(" (host ")) != std::string::npos;)
    shown.erase(at, shown.find(')', at) + 1 - at);
  CHECK(shown.starts_with("after step 300 the ranks have different weights: " + odd + " in " + parameter));
  CHECK_THAT(shown, ContainsSubstring("Nothing was saved"));
}

template <class Body>
void in_every_mode(Body body) {
  for (const Variant& mode : goat::test::variants()) {
    if (mode.device == "cuda") continue;  // so far ranks are those of one host's memory
    INFO("device " << mode.device << ", " << (mode.dtype == DType::bf16 ? "bf16" : "f32"));
    body(mode);
  }
}
}  // namespace

TEST_CASE("weights check: equal weights pass, for any number of ranks") {
  in_every_mode([](const Variant& mode) {
    for (const int size : {2, 3, 4})
      for (const std::string& text : told(mode, size, [](int, Weights&) {})) CHECK(text == "equal");
  });
}

TEST_CASE("weights check: any bit of any parameter in one of the ranks is found, and both are named") {
  in_every_mode([](const Variant& mode) {
    goat::test::Rng rng(goat::test::fresh_seed());
    const std::vector<std::int64_t> elements = {3500, 33, 15, 1};
    for (const int size : {2, 3, 4})
      for (int odd = 0; odd < size; ++odd) {
        const std::size_t which = rng() % names.size();
        const auto element = static_cast<std::int64_t>(rng() % static_cast<std::size_t>(elements[which]));
        const bool narrow = mode.dtype == DType::bf16 && which < 2;
        const std::uint32_t bit = 1u << rng() % (narrow ? 16 : 32);
        INFO(names[which] << "[" << element << "] ^ " << bit << " in rank " << odd << " of " << size);
        const auto texts = told(mode, size, [&](int rank, Weights& weights) {
          if (rank == odd) weights.change(names[which], element, bit);
        });
        check_named(texts, "rank " + std::to_string(size == 2 ? 1 : odd), names[which]);
        const bool open = texts.front().find("(or the others are wrong") != std::string::npos;
        CHECK(open == (size == 2));
      }
  });
}

TEST_CASE("weights check: of several parameters the first is named, and every rank that differs in it") {
  in_every_mode([](const Variant& mode) {
    check_named(told(mode, 3,
                     [](int rank, Weights& weights) {
                       if (rank == 1) weights.change("third", 14, 1);
                       if (rank == 2) weights.change("second", 32, 1);
                       if (rank == 2) weights.change("last", 0, 1);
                     }),
                "rank 2", "second");
    check_named(told(mode, 4,
                     [](int rank, Weights& weights) {
                       if (rank == 0 || rank == 3) weights.change("last", 0, 1u << rank);
                     }),
                "rank 0, rank 3", "last");
  });
}

TEST_CASE("weights check: zeros of two signs differ, and so do NaNs of two payloads") {
  in_every_mode([](const Variant& mode) {
    check_named(told(mode, 3,
                     [](int rank, Weights& weights) {
                       if (rank == 1) weights.change("last", 0, 0x80000000u);
                     }),
                "rank 1", "last");
    const auto nan_with = [&](std::uint32_t payload) {
      return told(mode, 3, [payload](int rank, Weights& weights) {
        weights.change("last", 0, 0x7fc00000u | (rank == 2 ? payload : 0));
      });
    };
    check_named(nan_with(1), "rank 2", "last");
    for (const std::string& text : nan_with(0)) CHECK(text == "equal");
  });
}

TEST_CASE("weights check: elements that have changed their places differ") {
  in_every_mode([](const Variant& mode) {
    check_named(told(mode, 3,
                     [](int rank, Weights& weights) {
                       const std::uint32_t between = weights.bits("third", 3) ^ weights.bits("third", 4);
                       if (rank != 0) return;
                       weights.change("third", 3, between);
                       weights.change("third", 4, between);
                     }),
                "rank 0", "third");
  });
}
