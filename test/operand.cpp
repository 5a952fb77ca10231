#include "test/operand.h"
#include "kernels/open/open_device.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
constexpr bool guards_can_close = true;
#else
constexpr bool guards_can_close = false;
#define ASAN_POISON_MEMORY_REGION(place, bytes) static_cast<void>(place)
#define ASAN_UNPOISON_MEMORY_REGION(place, bytes) static_cast<void>(place)
#endif

namespace goat::test {

namespace {
constexpr std::size_t guard_bytes = 256;

// With AddressSanitizer, reading a guard band is an error too, on devices whose memory is the host's. What is
// enqueued finds the guards as they are now: uploads of the bands find them open, operations closed.
void close_guards(Device& device, const DeviceBuffer& buffer, bool closed) {
  if (!guards_can_close || device.info().name == "cuda") return;
  device.synchronize();
  auto* first = static_cast<unsigned char*>(buffer.data());
  for (unsigned char* guard : {first, first + buffer.bytes() - guard_bytes})
    if (closed)
      ASAN_POISON_MEMORY_REGION(guard, guard_bytes);
    else
      ASAN_UNPOISON_MEMORY_REGION(guard, guard_bytes);
}

double element_as_double(const unsigned char* bytes, DType dtype) {
  switch (dtype) {
    case DType::f32: {
      float value;
      std::memcpy(&value, bytes, 4);
      return value;
    }
    case DType::f64: {
      double value;
      std::memcpy(&value, bytes, 8);
      return value;
    }
    case DType::i32: {
      std::int32_t value;
      std::memcpy(&value, bytes, 4);
      return value;
    }
    case DType::bf16: {
      std::uint16_t half;
      std::memcpy(&half, bytes, 2);
      const std::uint32_t bits = std::uint32_t{half} << 16;
      float value;
      std::memcpy(&value, &bits, 4);
      return value;
    }
  }
  throw std::invalid_argument("element_as_double: unknown dtype");
}

void store_rounded(unsigned char* bytes, DType dtype, double value) {
  if (dtype == DType::f64) {
    std::memcpy(bytes, &value, 8);
  } else if (dtype == DType::i32) {
    const auto rounded = static_cast<std::int32_t>(value);
    std::memcpy(bytes, &rounded, 4);
  } else {
    const auto single = static_cast<float>(value);
    if (dtype == DType::f32) {
      std::memcpy(bytes, &single, 4);
    } else {  // bf16, round to nearest even
      std::uint32_t bits;
      std::memcpy(&bits, &single, 4);
      bits += 0x7FFF + ((bits >> 16) & 1);
      const auto half = static_cast<std::uint16_t>(bits >> 16);
      std::memcpy(bytes, &half, 2);
    }
  }
}
}  // namespace

std::vector<std::string> device_names(DType dtype) {
  const char* wanted = std::getenv("GOAT_TEST_DEVICES");
  std::vector<std::string> names;
  for (const std::string name : {"cpu", "simt", "cuda"}) {
    if (dtype != DType::f32 && name == "cpu") continue;
    if (wanted && ("," + std::string(wanted) + ",").find("," + name + ",") == std::string::npos) continue;
    try {
      open_device(name);
      names.push_back(name);
    } catch (const std::invalid_argument&) {  // not in this build, or not on this machine
      if (wanted) throw;
    }
  }
  return names;
}

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::string& name : device_names(dtype)) all.push_back({name, dtype});
  return all;
}

double rounded_to(DType dtype, double value) {
  unsigned char bytes[8];
  store_rounded(bytes, dtype, value);
  return element_as_double(bytes, dtype);
}

std::vector<double> rounded_to(DType dtype, std::vector<double> values) {
  for (double& value : values) value = rounded_to(dtype, value);
  return values;
}

bool reduced() { return std::getenv("GOAT_TEST_REDUCED") != nullptr; }

std::uint64_t fresh_seed() {
  if (const char* text = std::getenv("GOAT_TEST_SEED")) return std::strtoull(text, nullptr, 10);
  return std::random_device{}();
}

Operand::Operand(Device& device, DType dtype, std::initializer_list<std::int64_t> shape, const char* name)
    : device_(&device) {
  tensor_ = Tensor::contiguous(nullptr, dtype, shape, name);
  const std::size_t bytes = tensor_.bytes() + 2 * guard_bytes;
  buffer_ = DeviceBuffer(device, bytes);
  const std::vector<unsigned char> poison(bytes, 0xFF);
  device.upload(buffer_.data(), poison.data(), bytes);
  tensor_.data = static_cast<unsigned char*>(buffer_.data()) + guard_bytes;
  close_guards(device, buffer_, true);
}

Operand Operand::normal(Device& device, Rng& rng, std::initializer_list<std::int64_t> shape, const char* name,
                        double scale, DType dtype) {
  Operand operand(device, dtype, shape, name);
  std::vector<double> values(static_cast<std::size_t>(operand.tensor_.elements()));
  std::normal_distribution<double> distribution(0, scale);
  for (double& value : values) value = distribution(rng);
  operand.set(values);
  return operand;
}

Operand Operand::of(Device& device, const std::vector<double>& values,
                    std::initializer_list<std::int64_t> shape, const char* name, DType dtype) {
  Operand operand(device, dtype, shape, name);
  operand.set(values);
  return operand;
}

Operand Operand::zeros(Device& device, std::initializer_list<std::int64_t> shape, const char* name,
                       DType dtype) {
  Operand operand(device, dtype, shape, name);
  device.set_zero(operand.tensor_.data, operand.tensor_.bytes());
  return operand;
}

std::vector<double> Operand::values() const {
  std::vector<unsigned char> bytes(buffer_.bytes());
  close_guards(*device_, buffer_, false);
  device_->download(bytes.data(), buffer_.data(), bytes.size());
  close_guards(*device_, buffer_, true);
  for (std::size_t i = 0; i < guard_bytes; ++i)
    if (bytes[i] != 0xFF || bytes[bytes.size() - 1 - i] != 0xFF)
      throw std::runtime_error(std::string(tensor_.name) + ": written outside its bounds");
  return values_of(*device_, tensor_);
}

void Operand::set(const std::vector<double>& values) {
  if (values.size() != static_cast<std::size_t>(tensor_.elements()))
    throw std::invalid_argument(std::string(tensor_.name) + ": wrong number of values");
  std::vector<unsigned char> bytes(tensor_.bytes());
  for (std::size_t i = 0; i < values.size(); ++i)
    store_rounded(bytes.data() + i * size_of(tensor_.dtype), tensor_.dtype, values[i]);
  device_->upload(tensor_.data, bytes.data(), bytes.size());
}

std::vector<double> values_of(Device& device, const Tensor& view) {
  std::vector<double> values;
  if (view.elements() == 0) return values;
  std::int64_t extent = 1;  // elements from the first to the last, inclusive
  for (int dim = 0; dim < view.rank; ++dim) extent += (view.shape[dim] - 1) * view.stride[dim];
  const std::size_t width = size_of(view.dtype);
  std::vector<unsigned char> bytes(static_cast<std::size_t>(extent) * width);
  device.download(bytes.data(), view.data, bytes.size());
  std::array<std::int64_t, Tensor::max_rank> index{};
  for (std::int64_t n = 0; n < view.elements(); ++n) {
    std::int64_t offset = 0;
    for (int dim = 0; dim < view.rank; ++dim) offset += index[dim] * view.stride[dim];
    values.push_back(element_as_double(bytes.data() + static_cast<std::size_t>(offset) * width, view.dtype));
    for (int dim = view.rank - 1; dim >= 0 && ++index[dim] == view.shape[dim]; --dim) index[dim] = 0;
  }
  return values;
}

namespace {
// The error bound is share ||want|| + allowance + 8 * 2^-24 ||terms||.
std::string mismatch(const std::vector<double>& got, const std::vector<double>& want,
                     const std::vector<double>& terms, double share, double allowance) {
  std::ostringstream message;
  if (got.size() != want.size() || (!terms.empty() && terms.size() != want.size())) {
    message << "sizes differ: got " << got.size() << ", want " << want.size() << ", terms " << terms.size();
    return message.str();
  }
  double error = 0, norm = 0, condition = 0, worst = -1;
  std::size_t where = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(got[i] - want[i]);
    if (!std::isfinite(got[i]) || !std::isfinite(want[i])) {
      message << "element " << i << " is " << got[i] << ", want " << want[i];
      return message.str();
    }
    error += difference * difference;
    norm += want[i] * want[i];
    const double magnitude = terms.empty() ? want[i] : terms[i];
    condition += magnitude * magnitude;
    if (difference > worst) worst = difference, where = i;
  }
  const double allowed = share * std::sqrt(norm) + allowance + 8 * 0x1p-24 * std::sqrt(condition);
  if (std::sqrt(error) <= allowed) return "";
  message << "||got - want|| = " << std::sqrt(error) << " > " << allowed << " (||want|| = " << std::sqrt(norm)
          << "); worst element " << where << ": got " << got[where] << ", want " << want[where];
  return message.str();
}

}  // namespace

std::string mismatch_fp32(const std::vector<double>& got, const std::vector<double>& want,
                          const std::vector<double>& terms) {
  return mismatch(got, want, terms, 1e-5, 0);
}

namespace {
// Half the distance between bf16 numbers at `value`: what rounding it once may cost.
double half_spacing_bf16(double value) {
  constexpr int least_exponent = -126, fraction_bits = 7;
  const int exponent = value == 0 ? least_exponent : std::max(std::ilogb(value), least_exponent);
  return std::ldexp(0.5, exponent - fraction_bits);
}

// Whether each element is off by no more than one rounding to bf16, and what fp32 arithmetic costs before it.
// A second rounding would be off by more in about a quarter of the elements, yet hardly in the 2-norm.
std::string more_than_one_rounding(const std::vector<double>& got, const std::vector<double>& want,
                                   const std::vector<double>& terms) {
  double size = 0;
  for (const double value : want) size += value * value / static_cast<double>(want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double magnitude = std::max(std::abs(want[i]), terms.empty() ? 0.0 : terms[i]);
    const double allowed = half_spacing_bf16(want[i]) + 0x1p-17 * (magnitude + std::sqrt(size));
    if (std::abs(got[i] - want[i]) <= allowed) continue;
    std::ostringstream message;
    message << "element " << i << " is rounded more than once: got " << got[i] << ", want " << want[i]
            << ", off by " << std::abs(got[i] - want[i]) << " > " << allowed;
    return message.str();
  }
  return "";
}
}  // namespace

std::string mismatch_bf16(const std::vector<double>& got, const std::vector<double>& want,
                          const std::vector<double>& terms, const std::vector<double>& plain) {
  const std::vector<double> reference = plain.empty() ? rounded_to(DType::bf16, want) : plain;
  if (reference.size() != want.size())
    return "sizes differ: plain " + std::to_string(reference.size()) + ", want " +
           std::to_string(want.size());
  double squares = 0;
  for (std::size_t i = 0; i < want.size(); ++i)
    squares += (reference[i] - want[i]) * (reference[i] - want[i]);
  const std::string far = mismatch(got, want, terms, 0, 2 * std::sqrt(squares));
  return far.empty() && plain.empty() ? more_than_one_rounding(got, want, terms) : far;
}

}  // namespace goat::test
