#include "dev/bench/gpu_bench.h"

#include <bit>
#include <cmath>
#include <exception>
#include <random>

namespace goat::bench {

namespace {
constexpr std::size_t pattern_elements = (1 << 20) - 24;  // no multiple of a row, so that rows differ

std::vector<unsigned char> random_pattern(DType dtype) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<unsigned char> bytes(pattern_elements * size_of(dtype));
  for (std::size_t n = 0; n < pattern_elements; ++n) {
    const auto bits = std::bit_cast<std::uint32_t>(uniform(random));
    const auto upper = static_cast<std::uint16_t>(bits >> 16);
    if (dtype == DType::bf16)
      std::copy_n(reinterpret_cast<const unsigned char*>(&upper), 2, &bytes[2 * n]);
    else
      std::copy_n(reinterpret_cast<const unsigned char*>(&bits), 4, &bytes[4 * n]);
  }
  return bytes;
}
}  // namespace

Tensor Arena::allocate(DType dtype, std::initializer_list<std::int64_t> shape, const char* name) {
  Tensor tensor = Tensor::contiguous(nullptr, dtype, shape, name);
  buffers_.emplace_back(device_, tensor.bytes());
  tensor.data = buffers_.back().data();
  return tensor;
}

const DeviceBuffer& Arena::pattern(DType dtype) {
  if (!patterns_.contains(dtype)) {
    const std::vector<unsigned char> bytes = random_pattern(dtype);
    DeviceBuffer buffer(device_, bytes.size());
    device_.upload(buffer.data(), bytes.data(), bytes.size());
    patterns_.emplace(dtype, std::move(buffer));
  }
  return patterns_.at(dtype);
}

Tensor Arena::tensor(DType dtype, std::initializer_list<std::int64_t> shape, const char* name) {
  const Tensor tensor = allocate(dtype, shape, name);
  const DeviceBuffer& source = pattern(dtype);
  for (std::size_t done = 0; done < tensor.bytes(); done += source.bytes())
    device_.copy(static_cast<unsigned char*>(tensor.data) + done, source.data(),
                 std::min(source.bytes(), tensor.bytes() - done));
  return tensor;
}

Tensor Arena::zeros(DType dtype, std::initializer_list<std::int64_t> shape, const char* name) {
  const Tensor tensor = allocate(dtype, shape, name);
  device_.set_zero(tensor.data, tensor.bytes());
  return tensor;
}

Tensor Arena::integers(std::initializer_list<std::int64_t> shape, std::int32_t below, const char* name) {
  const Tensor tensor = allocate(DType::i32, shape, name);
  std::vector<std::int32_t> values(static_cast<std::size_t>(tensor.elements()));
  std::mt19937 random(1);
  for (std::size_t n = 0; n < values.size(); ++n)
    values[n] = below > 0 ? static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(below))
                          : static_cast<std::int32_t>(n);
  device_.upload(tensor.data, values.data(), tensor.bytes());
  return tensor;
}

double Bench::seconds_of(const std::function<void()>& call, int repetitions) {
  device_.synchronize();
  const double start = wall_clock();
  for (int n = 0; n < repetitions; ++n) call();
  device_.synchronize();
  return (wall_clock() - start) / repetitions;
}

void Bench::time(const std::string& name, const Work& work, nlohmann::ordered_json facts,
                 const std::function<void()>& call) {
  nlohmann::ordered_json result = {{"name", name}};
  result.update(facts);
  try {
    if (wall_clock() - start_ > options_.section_seconds) {
      result["skipped"] = "the section's time was used up";
      return report_(result);
    }
    int repetitions = 1;
    double seconds = seconds_of(call, 1);  // also loads the kernel
    if (!options_.tiny) {
      constexpr double round = 0.012;
      repetitions = std::clamp(static_cast<int>(round / seconds_of(call, 2)), 3, 2000);
      double rounds[3];
      for (double& each : rounds) each = seconds_of(call, repetitions);
      std::sort(rounds, rounds + 3);
      seconds = rounds[1];
    }
    result["microseconds"] = std::round(seconds * 1e8) / 100;
    result["repetitions"] = repetitions;
    if (work.flops > 0) result["tflops_per_second"] = std::round(work.flops / seconds / 1e9) / 1000;
    if (work.bytes > 0) result["gigabytes_per_second"] = std::round(work.bytes / seconds / 1e7) / 100;
  } catch (const std::exception& error) {
    result["error"] = error.what();
  }
  report_(result);
}

}  // namespace goat::bench
