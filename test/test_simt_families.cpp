// Which tile shapes of the attention kernels a GPU runs, by its shared memory and by the code that it loaded.
#include "kernels/cuda/attention/attention_traits.cuh"
#include "test/simulated.h"

using namespace goat::on_simt;
using goat::test::report_of;

namespace {
constexpr auto large = Family::large_shared, small = Family::small_shared;

// What a build for `architecture` holds.
LoadedFamilies code_for(int architecture, bool specific = false) {
  return {is_compiled(large, architecture, specific), is_compiled(small, architecture, specific)};
}
}  // namespace

TEST_CASE("attention shapes: every architecture runs the largest that its own code and memory have") {
  CHECK(choose_family(shared_memory_limit(80), code_for(800)) == large);
  CHECK(choose_family(shared_memory_limit(86), code_for(860)) == small);
  CHECK(choose_family(shared_memory_limit(89), code_for(890)) == small);
  CHECK(choose_family(shared_memory_limit(90), code_for(900, true)) == large);
  CHECK(choose_family(shared_memory_limit(120), code_for(1200)) == small);
}

TEST_CASE("attention shapes: code of an earlier architecture has those that fit a GPU with little memory") {
  for (const int card : {86, 89, 120}) {
    CHECK(choose_family(shared_memory_limit(card), code_for(800)) == small);
    CHECK(choose_family(shared_memory_limit(card), code_for(860)) == small);
  }
  CHECK(choose_family(shared_memory_limit(120), code_for(900)) == small);  // compiled from PTX
  CHECK(choose_family(shared_memory_limit(90), code_for(890)) == small);   // likewise
  CHECK(choose_family(shared_memory_limit(90), code_for(800)) == large);
  CHECK(choose_family(163 * 1024, code_for(800)) == large);  // sm_87
}

TEST_CASE("attention shapes: only code for a single architecture leaves shapes out") {
  CHECK_FALSE(is_compiled(small, 900, true));
  CHECK_FALSE(is_compiled(large, 860, false));
  for (const int architecture : {800, 870, 900, 1000, 1030}) {
    CHECK(is_compiled(large, architecture, false));
    CHECK(is_compiled(small, architecture, false));
  }
}

TEST_CASE("attention shapes: a GPU that none of the loaded ones fits is an error that says what to do") {
  const auto choose = [](std::size_t limit, LoadedFamilies loaded) {
    return report_of([&] { choose_family(limit, loaded); });
  };
  CHECK_THAT(choose(99 * 1024, {true, false}), ContainsSubstring("101376 bytes"));
  CHECK_THAT(choose(99 * 1024, {true, false}), ContainsSubstring("build"));
  CHECK_FALSE(choose(64 * 1024, {true, true}).empty());
  CHECK_FALSE(choose(227 * 1024, {false, false}).empty());
}
