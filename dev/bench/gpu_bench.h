// What the GPU benchmark's sections share: tensors with random contents, and the timing of one operation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "train/profile/clock.h"
#include "train/profile/operation_work.h"

namespace goat::bench {

// Tensors of one section, released with it. Floating-point contents are uniform in (-1, 1): kernels draw the
// power, and take the time, of real data.
class Arena {
 public:
  explicit Arena(Device& device) : device_(device) {}
  Tensor tensor(DType dtype, std::initializer_list<std::int64_t> shape, const char* name);
  Tensor integers(std::initializer_list<std::int64_t> shape, std::int32_t below,
                  const char* name);  // uniform in [0, below); below 0: 0, 1, 2, ..
  Tensor zeros(DType dtype, std::initializer_list<std::int64_t> shape, const char* name);

 private:
  Tensor allocate(DType dtype, std::initializer_list<std::int64_t> shape, const char* name);
  const DeviceBuffer& pattern(DType dtype);

  Device& device_;
  std::vector<DeviceBuffer> buffers_;
  std::map<DType, DeviceBuffer> patterns_;
};

struct Options {
  bool tiny = false;           // smallest shapes, one repetition: does it run?
  double section_seconds = 8;  // after which a section leaves out what is left of it
};

// Times operations and hands each result on as a JSON object, at once: what comes later may fail.
class Bench {
 public:
  using Report = std::function<void(const nlohmann::ordered_json&)>;
  Bench(Device& device, const Options& options, Report report)
      : device_(device), options_(options), report_(std::move(report)), start_(wall_clock()) {}

  Device& device() { return device_; }
  bool tiny() const { return options_.tiny; }
  // The size itself, or the small one that stands for it in a tiny run.
  std::int64_t size(std::int64_t full, std::int64_t tiny) const { return options_.tiny ? tiny : full; }

  // Times call(); work.flops / work.bytes give the rates. A failure is reported, not thrown.
  void time(const std::string& name, const Work& work, nlohmann::ordered_json facts,
            const std::function<void()>& call);
  template <class Operation>
  void time(const std::string& name, const Operation& op,
            nlohmann::ordered_json facts = nlohmann::ordered_json::object()) {
    time(name, work_of(op), std::move(facts), [&] { device_.run(op); });
  }

 private:
  double seconds_of(const std::function<void()>& call, int repetitions);

  Device& device_;
  Options options_;
  Report report_;
  double start_;
};

// The sections, in gpu_attention.cpp and gpu_layers.cpp.
void bench_attention(Bench& bench, std::int64_t head_dim);
void bench_decode(Bench& bench);
void bench_memory(Bench& bench);
void bench_gemm(Bench& bench);
void bench_c4_layers(Bench& bench);
void bench_1b_layers(Bench& bench);
void bench_optimizer(Bench& bench);

}  // namespace goat::bench
