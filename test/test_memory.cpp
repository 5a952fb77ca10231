// The plan of a run's memory: refused where it does not fit, with the micro-batch that would.

#include "train/memory/memory.h"

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/one_step.h"
#include "train/model/evaluation.h"
#include "train/model/generator.h"
#include "train/training/memory_fit.h"
#include "train/training/sources.h"
#include "train/training/trainer.h"

using namespace goat;
using goat::test::one_step;

namespace {

// A CPU with little memory, under any name.
class SmallDevice final : public CpuDevice {
 public:
  explicit SmallDevice(std::size_t bytes, const std::string& name = "cpu")
      : bytes_(bytes), info_(CpuDevice::info()) {
    info_.name = name;
  }
  const DeviceInfo& info() const override { return info_; }
  std::size_t available_memory() const override { return bytes_; }

 private:
  std::size_t bytes_;
  DeviceInfo info_;
};

// A CPU that counts the operations which take temporary memory: from a workspace that the caller gave, and
// from elsewhere.
class CountingDevice final : public CpuDevice {
 public:
  WorkspaceMemory use_workspace(WorkspaceMemory memory) override {
    given_ = memory.data != nullptr;
    return CpuDevice::use_workspace(memory);
  }
  std::int64_t inside = 0, outside = 0;

 private:
#define GOAT_COUNT(Operation, name)                       \
  void launch(const Operation& op) override {             \
    if (workspace(op) > 0) given_ ? ++inside : ++outside; \
    CpuDevice::launch(op);                                \
  }
  GOAT_FOR_EACH_OPERATION(GOAT_COUNT)
#undef GOAT_COUNT
  bool given_ = false;
};

Config batch_of_twelve(std::int64_t micro_batch, const std::string& recompute = "none") {
  return load_config(
      "copy_mixture",
      {"model.layers=6", "model.width=16", "model.vocab=13", "prior.pos_rank=1", "prior.abs_rank=2",
       "data.seq_len=64", "train.batch=12", "train.steps=4", "train.warmup=1", "model.recompute=" + recompute,
       "train.micro_batch=" + std::to_string(micro_batch)});
}

std::size_t bytes_with(std::int64_t micro_batch, const std::string& recompute = "none") {
  return TrainingPlan(batch_of_twelve(micro_batch, recompute), CpuDevice()).memory.total_bytes();
}

// What a run that starts with all 12 sequences at once is told where there are `bytes` of memory.
std::string refusal(std::size_t bytes) {
  const Config config = batch_of_twelve(12);
  SmallDevice device(bytes);
  const auto training = open_training_source(config);
  try {
    Trainer(config, device, *training, nullptr).require_memory();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE(
    "memory: the setting advised is the largest micro-batch that fits, to the byte, before recomputation") {
  const auto advice = [](std::size_t bytes) {
    return setting_that_fits(batch_of_twelve(12), CpuDevice(), bytes);
  };
  const std::vector<std::int64_t> divisors = {1, 2, 3, 4, 6, 12};
  for (std::size_t i = 0; i + 1 < divisors.size(); ++i) {
    const std::string want = "This fits: --set train.micro_batch=" + std::to_string(divisors[i]);
    INFO("micro-batch " << divisors[i]);
    CHECK(bytes_with(divisors[i]) < bytes_with(divisors[i + 1]));
    CHECK(advice(bytes_with(divisors[i])) == want);
    CHECK(advice(bytes_with(divisors[i + 1]) - 1) == want);
  }
  REQUIRE(bytes_with(1, "gelu") < bytes_with(1));
  REQUIRE(bytes_with(1, "block") < bytes_with(1, "gelu"));
  CHECK(advice(bytes_with(1) - 1) == "This fits: --set train.micro_batch=1 --set model.recompute=gelu");
  CHECK(advice(bytes_with(1, "gelu") - 1) ==
        "This fits: --set train.micro_batch=2 --set model.recompute=block");
  CHECK_THAT(advice(bytes_with(1, "block") - 1), ContainsSubstring("No micro-batch fits"));
  // Who asks for 12 may have all memory; what is advised leaves some to others.
  CHECK(refusal(bytes_with(12)) == "");
  CHECK_THAT(refusal(bytes_with(12) - 1), ContainsSubstring("--set train.micro_batch=6."));
}

TEST_CASE("memory: the setting advised names the epilogue that it needs") {
  Config config = batch_of_twelve(12);
  config.model.epilogue = "library";
  const auto advice = [&](std::size_t bytes) { return setting_that_fits(config, CpuDevice(), bytes); };
  CHECK_THAT(advice(bytes_with(1, "gelu")),
             ContainsSubstring("--set model.recompute=gelu --set model.epilogue=own"));
  CHECK(!ContainsSubstring("epilogue").match(advice(bytes_with(1, "block"))));
}

TEST_CASE("memory: micro_batch = 0 takes the largest that fits, a resumed run its own while that fits") {
  using Choice = std::pair<std::int64_t, std::string>;
  const auto chosen = [](std::size_t usable, std::int64_t before, std::int64_t asked = 0) {
    const SmallDevice device(usable + usable / 3 + 1);
    REQUIRE(usable_memory(device) >= usable);
    const MicroBatchChoice choice =
        choose_micro_batch(batch_of_twelve(asked), device, usable_memory(device), before);
    return Choice(choice.config.micro_batch(), choice.origin);
  };
  const std::string largest = "the largest that fits", kept = "as before";
  CHECK(chosen(bytes_with(12), 0) == Choice(12, largest));
  CHECK(chosen(bytes_with(12) - 64, 0) == Choice(6, largest));
  CHECK(chosen(bytes_with(4), 0) == Choice(4, largest));
  CHECK(chosen(16, 0) == Choice(1, largest));  // and is refused
  CHECK(chosen(bytes_with(12), 3) == Choice(3, kept));
  CHECK(chosen(bytes_with(3), 3) == Choice(3, kept));
  CHECK(chosen(bytes_with(2), 3) == Choice(2, largest));
  CHECK(chosen(bytes_with(12), 5) == Choice(12, largest));  // the batch has changed
  CHECK(chosen(16, 12, 4) == Choice(4, ""));
}

TEST_CASE("memory: what a GPU's run leaves to others is a 32nd, what a cpu's run leaves a quarter") {
  CHECK(usable_memory(SmallDevice(400)) == 300);
  CHECK(usable_memory(SmallDevice(3200, "cuda")) == 3100);
}

TEST_CASE("memory: an allocation that fails is told with the plan, and with advice that counts all memory") {
  // Allocates two blocks, then no more.
  class FailingAllocation final : public CpuDevice {
   public:
    std::size_t available_memory() const override { return std::size_t{1} << 30 >> held; }
    void* allocate(std::size_t bytes) override {
      if (++calls > 2) throw std::bad_alloc();
      ++held;
      return CpuDevice::allocate(bytes);
    }
    void release(void* memory) noexcept override {
      if (memory) --held;
      CpuDevice::release(memory);
    }
    int calls = 0, held = 0;
  };
  FailingAllocation device;
  Tensor weights, gradients, moments;
  MemoryPlan plan;
  plan.add(MemoryCategory::parameters, "weights", DType::f32, {256}, weights);
  plan.add(MemoryCategory::gradients, "gradients", DType::f32, {256}, gradients);
  plan.add(MemoryCategory::optimizer, "adam m", DType::f32, {512}, moments);
  CHECK_THROWS_WITH(
      plan.allocate(device, [&] { return "There are " + bytes_text(device.available_memory()); }),
      ContainsSubstring("no memory for the optimizer, 2.0 KiB of 4.0 KiB in all. Plan: parameters 1.0 KiB, "
                        "gradients 1.0 KiB, optimizer 2.0 KiB. Largest tensors of the optimizer: adam m "
                        "[512] 2.0 KiB. There are 1.0 GiB."));
}

TEST_CASE("memory: a plan that does not fit says what is needed, what there is, and its largest tensors") {
  Tensor small, large, middle;
  MemoryPlan plan;
  plan.add(MemoryCategory::activations, "the small one", DType::f32, {256}, small);
  plan.add(MemoryCategory::activations, "the large one", DType::f32, {3, 1024}, large);
  plan.add(MemoryCategory::activations, "the middle one", DType::f32, {512}, middle);
  CHECK(plan.total_bytes() == 1024 + 12288 + 2048);
  SmallDevice exact(plan.total_bytes()), short_of_one(plan.total_bytes() - 1);
  plan.require_fits(exact, [] { return "Nothing"; });
  CHECK_THROWS_WITH(
      plan.require_fits(short_of_one, [] { return "Do this"; }),
      ContainsSubstring("15.0 KiB are needed, 1 B more than there is. Plan: activations 15.0 KiB.") &&
          ContainsSubstring(
              "the large one [3, 1024] 12.0 KiB, the middle one [512] 2.0 KiB, the small one") &&
          ContainsSubstring("Do this."));
}

TEST_CASE("memory: tensors start on lines of 256 bytes, apart from each other, and zero") {
  const auto device = open_device("cpu");
  Tensor first, second, third;
  MemoryPlan plan;
  plan.add(MemoryCategory::workspace, "first", DType::f32, {1}, first);
  plan.add(MemoryCategory::workspace, "second", DType::f32, {65}, second);
  plan.add(MemoryCategory::workspace, "third", DType::f32, {64}, third);
  CHECK(plan.bytes(MemoryCategory::workspace) == 256 + 512 + 256);
  CHECK(plan.bytes(MemoryCategory::activations) == 0);
  plan.allocate(*device);
  CHECK(second.as<float>() - first.as<float>() == 64);
  CHECK(third.as<float>() - second.as<float>() == 128);
  CHECK(std::all_of(first.as<float>(), third.as<float>() + 64, [](float value) { return value == 0; }));
}

TEST_CASE("memory: sizes are told in the largest unit that keeps them at 1 or more") {
  CHECK(bytes_text(0) == "0 B");
  CHECK(bytes_text(1023) == "1023 B");
  CHECK(bytes_text(1024) == "1.0 KiB");
  CHECK(bytes_text(1536 << 10) == "1.5 MiB");
  CHECK(bytes_text(std::size_t{5} << 40) == "5.0 TiB");
  CHECK(bytes_text(std::size_t{5} << 52) == "20480.0 TiB");
}

TEST_CASE("memory: training, evaluation and generation take temporary memory from their plans alone") {
  CountingDevice device;
  const Config config = batch_of_twelve(3);
  const auto training = open_training_source(config), validation = open_validation_source(config);
  Trainer trainer(config, device, *training, validation.get());
  trainer.allocate();
  trainer.initialize();
  const auto only_planned = [&] {
    CHECK(std::exchange(device.inside, 0) > 0);
    CHECK(device.outside == 0);
  };
  one_step(trainer);
  only_planned();
  trainer.validate();
  only_planned();
  evaluate(config, trainer.parameters(), device, *validation, {.length = 64, .sequences = 2}, false);
  only_planned();
  for (const bool cache : {true, false}) {
    Generator generator(config, trainer.parameters(), device, {1, 2, 3}, 4, cache);
    for (int token = 0; token < 4; ++token) {
      generator.next_logits();
      generator.append(5);
    }
    only_planned();
  }
}
