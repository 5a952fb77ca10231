// The operand checks of what makes a step of the passes: loss, verdict, optimizer, sums over ranks.
#include <limits>
#include <span>

#include "test/catch.h"
#include "test/operation_checks.h"

using namespace goat;
using namespace goat::test;

namespace {
StepState state;
AdamW adamw() {
  return {.state = &state, .param = f32({9}), .master = {}, .m = f32({9}), .v = f32({9}), .grad = f32({9})};
}
}  // namespace

TEST_CASE("operand checks: cross entropy") {
  const CrossEntropy op{.logits = f32({6, 64}),
                        .losses = f32({6}),
                        .targets = i32({6}),
                        .weights = f32({6}),
                        .weight = 1,
                        .vocab = 50};
  CHECK(complaint(op) == "");
  CHECK(complaint(op, [](auto& o) { o.weights = {}; }) == "");
  CHECK(complaint(op, [](auto& o) { o.vocab = 70; }) ==
        "cross_entropy: vocab = 70: expected 1 <= vocab <= V_p (V_p = 64 in logits)");
  CHECK(complaint(op, [](auto& o) { o.vocab = 0; }) ==
        "cross_entropy: vocab = 0: expected 1 <= vocab <= V_p (V_p = 64 in logits)");
  CHECK(complaint(op, [](auto& o) { o.targets = i32({7}); }) ==
        "cross_entropy: targets [7] i32: expected shape [N] = [6] (N = 6 in logits)");
}

TEST_CASE("operand checks: loss and squares of a step, and the verdict over them") {
  CHECK(complaint(AddLoss{memory, f32({6}), f32({6})}) == "");
  CHECK(complaint(AddLoss{nullptr, f32({6}), {}}) == "add_loss: sum is missing");
  CHECK(complaint(AddLoss{memory, f32({6}), f32({5})}) ==
        "add_loss: weights [5] f32: expected shape [N] = [6] (N = 6 in losses)");

  CHECK(complaint(SquaredSums{f64({3}), f32({5, 16384})}) == "");
  CHECK(complaint(SquaredSums{f64({2}), f32({4, 16384})}) == "");
  CHECK(complaint(SquaredSums{f64({0}), f32({0, 2})}) == "");
  CHECK(complaint(SquaredSums{f64({2}), f32({5, 16384})}) ==
        "squared_sums: sums [2] f64: expected shape [chunks] = [3] (chunks = 3 in x)");
  CHECK(complaint(SquaredSums{f32({1}), f32({5})}) == "squared_sums: sums [1] f32: expected f64");
  CHECK(complaint(SquaredSums{f64({1}), bf16({5})}) == "squared_sums: x [5] bf16: expected f32");
  CHECK(complaint(SquaredSums{f64({1}), f32({5, 9}).slice(1, 0, 8)}) ==
        "squared_sums: x [5, 8] f32: expected a contiguous tensor");

  const ChunkSums good[] = {{f64({2, 5}), 0}, {f64({2, 7}).slice(1, 0, 4), 9}, {f64({1, 0}), 9}};
  const StepVerdict verdict{&state, f64({2, 4}).slice(1, 1, 2), good, 1};
  CHECK(complaint(verdict) == "");
  CHECK(complaint(verdict, [](StepVerdict& op) { op.state = nullptr; }) == "step_verdict: state is missing");
  CHECK(complaint(verdict, [](StepVerdict& op) {
          op.losses = f32({2, 1});
        }) == "step_verdict: losses [2, 1] f32: expected f64");
  CHECK(complaint(verdict, [](StepVerdict& op) { op.losses = f64({2}); }) ==
        "step_verdict: losses [2] f64: expected shape [N, k]");
  CHECK(complaint(verdict, [](StepVerdict& op) { op.flags = f64({2, 4}).slice(1, 2, 2); }) == "");
  CHECK(complaint(verdict, [](StepVerdict& op) {
          op.flags = f64({3, 2});
        }) == "step_verdict: flags [3, 2] f64: expected shape [N, F] = [2, F] (N = 2 in losses)");
  CHECK(complaint(verdict, [](StepVerdict& op) {
          op.flags = f64({2, 3});
        }) == "step_verdict: expected F = 2 (F = 3 in flags)");
  CHECK(complaint(verdict, [](StepVerdict& op) { op.nodes = 0; }) ==
        "step_verdict: nodes = 0: expected a divisor of N (N = 2 in losses)");
  CHECK(complaint(verdict, [](StepVerdict& op) { op.nodes = 3; }) ==
        "step_verdict: nodes = 3: expected a divisor of N (N = 2 in losses)");
  CHECK(complaint(verdict, [](StepVerdict& op) { op.nodes = 2; }) ==
        "step_verdict: nodes = 2: expected a divisor of N (N = 1 in squares[2].sums)");
  CHECK(complaint(verdict, [&](StepVerdict& op) {
          op.nodes = 2;
          op.squares = std::span(good).first(2);
        }) == "");
  CHECK(complaint(verdict, [](StepVerdict& op) { op.clip = -1; }) ==
        "step_verdict: clip = -1: expected a finite number, 0 for no clipping");
  const auto complaint_of = [&](const ChunkSums& second) {
    const ChunkSums squares[] = {{f64({2, 5}), 3}, second};
    return complaint(verdict, [&](StepVerdict& op) { op.squares = squares; });
  };
  CHECK(complaint_of({f64({1, 5}), 3}) == "");
  CHECK(complaint_of({f64({5}), 4}) == "step_verdict: squares[1].sums [5] f64: expected shape [N, c]");
  CHECK(complaint_of({f32({1, 5}), 4}) == "step_verdict: squares[1].sums [1, 5] f32: expected f64");
  CHECK(complaint_of({f64({1, 5}), 2}) ==
        "step_verdict: squares[1].first = 2: expected at least 0 and at least the one before");
  const ChunkSums negative[] = {{f64({1, 5}), -1}};
  CHECK(complaint(verdict, [&](StepVerdict& op) { op.squares = negative; }) ==
        "step_verdict: squares[0].first = -1: expected at least 0 and at least the one before");
}

TEST_CASE("operand checks: optimizer") {
  CHECK(complaint(adamw()) == "");
  CHECK(complaint(adamw(), [](AdamW& op) { op.param = bf16({9}); }) == "adamw: master is missing");
  CHECK(complaint(adamw(), [](AdamW& op) { op.m = f32({8}); }) ==
        "adamw: m [8] f32: expected shape [9] like param");
  CHECK(complaint(adamw(), [](AdamW& op) { op.v = bf16({9}); }) == "adamw: v [9] bf16: expected f32");
  CHECK(complaint(adamw(), [](AdamW& op) { op.beta2 = 1; }) == "adamw: beta2 = 1: expected 0 <= beta2 < 1");
  CHECK(complaint(adamw(), [](AdamW& op) { op.first_element = 6; }) ==
        "adamw: first_element = 6: expected a multiple of 4, at least 0");
  CHECK(complaint(adamw(), [](AdamW& op) { op.eps = 0; }) ==
        "adamw: eps = 0: expected a finite number above 0");
  CHECK(complaint(adamw(), [](AdamW& op) { op.weight_decay = -0.1f; }) ==
        "adamw: weight_decay = -0.1: expected a finite number, 0 for none");
  CHECK(complaint(adamw(), [](AdamW& op) { op.lr_scale = -1; }) ==
        "adamw: lr_scale = -1: expected a finite number, at least 0");
  CHECK(complaint(adamw(), [](AdamW& op) {
          op.param = bf16({9});
          op.master = f32({9});
        }) == "");
  CHECK(complaint(adamw(), [](AdamW& op) { op.grad = bf16({9}); }) == "adamw: grad [9] bf16: expected f32");
}

TEST_CASE("operand checks: parts of a sum, and what is hashed") {
  const SumParts sum{f32({9}), f32({4, 9})};
  CHECK(complaint(sum) == "");
  CHECK(complaint(SumParts{f32({9}), f32({4, 12}).slice(1, 3, 9)}) == "");
  CHECK(complaint(SumParts{f32({0}), f32({1024, 0})}) == "");
  CHECK(complaint(SumParts{f32({9}), f32({0, 9})}) == "sum_parts: expected 1 <= N <= 1024 (N = 0 in parts)");
  CHECK(complaint(SumParts{f32({9}), f32({1025, 9})}) ==
        "sum_parts: expected 1 <= N <= 1024 (N = 1025 in parts)");
  CHECK(complaint(sum, [](SumParts& op) { op.out = f32({8}); }) ==
        "sum_parts: out [8] f32: expected shape [n] = [9] (n = 9 in parts)");
  CHECK(complaint(sum, [](SumParts& op) { op.parts = bf16({4, 12}).slice(1, 3, 9); }) == "");
  CHECK(complaint(sum, [](SumParts& op) {
          op.parts = f64({4, 9});
        }) == "sum_parts: parts [4, 9] f64: expected f32 or bf16");
  CHECK(complaint(sum, [](SumParts& op) {
          op.parts = bf16({4, 9});
          op.out = bf16({9});
        }) == "sum_parts: out [9] bf16: expected f32");
  std::uint64_t memory_of_hash = 0;
  const WeightsHash hash{&memory_of_hash, f32({2, 3})};
  CHECK(complaint(hash) == "");
  CHECK(complaint(hash, [](WeightsHash& op) { op.x = bf16({5}); }) == "");
  CHECK(complaint(hash, [](WeightsHash& op) { op.hash = nullptr; }) == "weights_hash: hash is missing");
  CHECK(complaint(hash, [](WeightsHash& op) { op.x = i32({5}); }) ==
        "weights_hash: x [5] i32: expected f32 or bf16");
  CHECK(complaint(hash, [](WeightsHash& op) { op.first_element = -1; }) ==
        "weights_hash: first_element = -1: expected at least 0");
}
