// Times what a token of a generation takes on the cpu device, as a share of the machine's memory bandwidth:
// the products of one row, attention of one query to a cache, and whole tokens of a model of 124M parameters.
//
//   OMP_NUM_THREADS=2 bench_decode
//   OMP_NUM_THREADS=2 bench_decode --rounds 3 --no-tokens
//
// The bandwidth is that of reading one large buffer with all threads. A part reads its operands one after the
// other from all of that buffer, so that it finds no more of them in the caches. Every part is timed next to
// a read; the table shows medians of the ratios. The output is Markdown.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/wait_policy.h"
#include "kernels/open/open_device.h"
#include "train/commands/token_sampler.h"
#include "train/config/config.h"
#include "train/model/generator.h"
#include "train/model/model_parameters.h"
#include "train/profile/timed_device.h"

namespace goat::bench {
namespace {

struct Options {
  std::int64_t mebibytes = 512;
  int rounds = 15;
  std::int64_t context = 256, tokens = 16;
  bool no_tokens = false;
  std::string clock = "wall";
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

constexpr std::int64_t lanes = 64, block = 1 << 14;  // of floats

SIMD_CLONES float sum_of(const float* values, std::int64_t count) {
  float sums[lanes] = {}, total = 0;
  for (std::int64_t i = 0; i < count; i += lanes) {
#pragma omp simd
    for (std::int64_t l = 0; l < lanes; ++l) sums[l] += values[i + l];
  }
  for (const float sum : sums) total += sum;
  return total;
}

// Memory far larger than the caches, written by the threads that read it.
class Buffer {
 public:
  explicit Buffer(Device& device, std::int64_t bytes)
      : count_(bytes / static_cast<std::int64_t>(sizeof(float)) / block * block),
        memory_(device, static_cast<std::size_t>(count_) * sizeof(float)) {
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < count_; ++i) data()[i] = static_cast<float>(i % 13) * 0.01f - 0.06f;
  }
  float* data() const { return static_cast<float*>(memory_.data()); }
  std::int64_t floats() const { return count_; }
  double bytes() const { return static_cast<double>(count_) * sizeof(float); }

  void read() {
    float total = 0;
#pragma omp parallel for schedule(static) reduction(+ : total)
    for (std::int64_t first = 0; first < count_; first += block) total += sum_of(data() + first, block);
    sum = total;
  }
  volatile float sum = 0;  // keeps the reads

 private:
  std::int64_t count_;
  DeviceBuffer memory_;
};

// A part of a token's work, on every copy of its operands that the buffer holds.
struct Part {
  std::string name;
  double bytes;  // that run() reads
  std::function<void()> run;
};

// x of `rows` rows times a weight [out, in].
Part linear(Device& device, const Buffer& buffer, const std::string& name, std::int64_t rows, std::int64_t in,
            std::int64_t out) {
  const std::int64_t copies = buffer.floats() / (in * out);
  auto memory = std::make_shared<DeviceBuffer>(device, static_cast<std::size_t>(rows * (in + out)) * 4);
  device.set_zero(memory->data(), memory->bytes());
  const Tensor x = Tensor::contiguous(memory->data(), DType::f32, {rows, in}, "x"),
               result = Tensor::contiguous(static_cast<float*>(memory->data()) + rows * in, DType::f32,
                                           {rows, out}, "out");
  return {name + ", " + std::to_string(rows) + (rows == 1 ? " row" : " rows"),
          static_cast<double>(copies * in * out) * sizeof(float), [=, &device, &buffer] {
            for (std::int64_t copy = 0; copy < copies; ++copy)
              device.run(LinearForward{.out = result,
                                       .x = x,
                                       .weight = Tensor::contiguous(buffer.data() + copy * in * out,
                                                                    DType::f32, {out, in}, "weight"),
                                       .bias = {}});
            (void)memory;
          }};
}

// `queries` queries to a cache [1, T, 3, H, 64] of `keys` tokens, as the trainer holds them.
Part attention(Device& device, const Buffer& buffer, std::int64_t queries, std::int64_t keys) {
  constexpr std::int64_t heads = 12, head_dim = 64;
  const std::int64_t token = 3 * heads * head_dim, copies = buffer.floats() / (keys * token);
  auto memory = std::make_shared<DeviceBuffer>(
      device, static_cast<std::size_t>(queries * heads * (2 * head_dim + 1)) * sizeof(float));
  device.set_zero(memory->data(), memory->bytes());
  auto* data = static_cast<float*>(memory->data());
  const std::int64_t elements = queries * heads * head_dim;
  AttentionForward op;
  op.q = Tensor::contiguous(data, DType::f32, {1, queries, heads, head_dim}, "q");
  op.out = Tensor::contiguous(data + elements, DType::f32, {1, queries, heads, head_dim}, "out");
  op.lse = Tensor::contiguous(data + 2 * elements, DType::f32, {1, heads, queries}, "lse");
  op.scale = 0.125f;
  return {"attention, " + std::to_string(queries) + (queries == 1 ? " query" : " queries") + " to " +
              std::to_string(keys) + " keys",
          static_cast<double>(copies * keys * 2 * heads * head_dim) * sizeof(float),
          [=, &device, &buffer]() mutable {
            for (std::int64_t copy = 0; copy < copies; ++copy) {
              const Tensor cache = Tensor::contiguous(buffer.data() + copy * keys * token, DType::f32,
                                                      {1, keys, 3, heads, head_dim}, "cache");
              op.k = cache.select(2, 1);
              op.v = cache.select(2, 2);
              device.run(op);
            }
            (void)memory;
          }};
}

std::vector<Part> parts_of(Device& device, const Buffer& buffer) {
  std::vector<Part> parts;
  constexpr std::int64_t width = 768;
  for (const std::int64_t rows : {1, 4, 5, 8}) {
    parts.push_back(linear(device, buffer, "qkv 768 > 2304", rows, width, 3 * width));
    parts.push_back(linear(device, buffer, "o 768 > 768", rows, width, width));
    parts.push_back(linear(device, buffer, "up 768 > 3072", rows, width, 4 * width));
    parts.push_back(linear(device, buffer, "down 3072 > 768", rows, 4 * width, width));
    parts.push_back(linear(device, buffer, "head 768 > 50304", rows, width, 50304));
  }
  for (const std::int64_t queries : {1, 4, 5})
    for (const std::int64_t keys : {32, 256, 1024}) parts.push_back(attention(device, buffer, queries, keys));
  return parts;
}

// The bandwidth of a read, in bytes a second: the median of all.
double print_parts(Device& device, const Options& options, Clock clock) {
  Buffer buffer(device, options.mebibytes << 20);
  const std::vector<Part> parts = parts_of(device, buffer);
  std::vector<double> reads;
  std::vector<std::vector<double>> shares(parts.size());
  const auto rate = [&](double bytes, const auto& work) {
    const double start = clock();
    work();
    return bytes / (clock() - start);
  };
  for (int round = 0; round <= options.rounds; ++round)  // the first warms up
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const double read = rate(buffer.bytes(), [&] { buffer.read(); }),
                   part = rate(parts[i].bytes, parts[i].run);
      if (round == 0) continue;
      reads.push_back(read);
      shares[i].push_back(part / read);
    }
  const double read = median(reads);
  std::printf("Reading %lld MiB: %.1f GB/s (median of %zu reads, %s time)\n\n",
              static_cast<long long>(options.mebibytes), read * 1e-9, reads.size(), options.clock.c_str());
  std::printf("| part | GB/s | share of the read %% |\n|---|---|---|\n");
  for (std::size_t i = 0; i < parts.size(); ++i)
    std::printf("| %s | %.1f | %.0f |\n", parts[i].name.c_str(), median(shares[i]) * read * 1e-9,
                100 * median(shares[i]));
  return read;
}

struct TokenTimes {
  std::vector<double> seconds, sampling;
  std::vector<Totals> operations;
};

TokenTimes time_tokens(Device& inner, const Options& options, Clock clock) {
  TimedDevice device(inner, clock);
  const Config config = load_config("copy_mixture", {"model.layers=12", "model.heads=12", "model.width=768",
                                                     "model.vocab=50257", "data.seq_len=1024"});
  ParameterSet parameters;
  MemoryPlan memory;
  declare_parameters(config, parameters);
  parameters.plan(memory, false);
  memory.allocate(device);
  parameters.bind();
  parameters.initialize(device, 1);
  Generator generator(config, parameters, device,
                      std::vector<std::int32_t>(static_cast<std::size_t>(options.context), 7),
                      options.tokens + 2, true);
  TokenSampler sampler({.temperature = 0.8, .top_k = 200}, 1);
  TokenTimes times;
  for (std::int64_t n = 0; n < options.tokens + 2; ++n) {  // the prompt's pass, and one to warm up
    device.start();
    const double start = clock();
    const std::span<const float> logits = generator.next_logits();
    const double passed = clock();
    generator.append(sampler.sample(logits, static_cast<std::uint64_t>(n)));
    const double end = clock();
    if (n < 2) continue;
    times.seconds.push_back(end - start);
    times.sampling.push_back(end - passed);
    times.operations.push_back(totals_of(device.take(), &TimedCall::host_seconds));
  }
  return times;
}

void print_tokens(const TokenTimes& times, const Options& options, double read) {
  double bytes = 0, in_operations = 0;
  for (const auto& [name, total] : times.operations.front()) bytes += total.work.bytes;
  const double token = median(times.seconds);
  std::printf(
      "\nA token of the model of 124M parameters after %lld tokens, top-k 200: %.2f ms. Reading its %.0f "
      "MB takes %.2f ms, %.0f %%.\n\n| operation | calls | ms | GB/s | share of the read %% |\n"
      "|---|---|---|---|---|\n",
      static_cast<long long>(options.context), 1e3 * token, bytes * 1e-6, 1e3 * bytes / read,
      100 * bytes / read / token);
  for (const auto& [name, total] : times.operations.front()) {
    std::vector<double> seconds;
    for (const Totals& of_token : times.operations) seconds.push_back(of_token.at(name).seconds);
    const double taken = median(seconds), rate = total.work.bytes / taken;
    in_operations += taken;
    std::printf("| %s | %ld | %.3f | %.1f | %.0f |\n", name.c_str(), total.calls, 1e3 * taken, rate * 1e-9,
                100 * rate / read);
  }
  std::printf("| sampling | 1 | %.3f | | |\n| everything else | | %.3f | | |\n", 1e3 * median(times.sampling),
              1e3 * (token - in_operations - median(times.sampling)));
}

int main_of(const Options& options) {
  const Clock clock = options.clock == "wall" ? wall_clock : processor_clock;
  const std::unique_ptr<Device> device = open_device("cpu");
  std::printf("%s\n\n", device->info().description.c_str());
  const double read = print_parts(*device, options, clock);
  if (!options.no_tokens) print_tokens(time_tokens(*device, options, clock), options, read);
  return 0;
}

}  // namespace
}  // namespace goat::bench

int main(int argc, char** argv) {
  goat::limit_spinning(argv);
  goat::bench::Options options;
  CLI::App app("Times the parts of a generated token as shares of the memory bandwidth.");
  app.add_option("--mebibytes", options.mebibytes, "the buffer")->check(CLI::Range(256, 1 << 20));
  app.add_option("--rounds", options.rounds, "timed rounds")->check(CLI::PositiveNumber);
  app.add_option("--context", options.context, "tokens before the timed ones")->check(CLI::PositiveNumber);
  app.add_option("--tokens", options.tokens, "timed tokens")->check(CLI::PositiveNumber);
  app.add_flag("--no-tokens", options.no_tokens, "only the parts");
  app.add_option("--clock", options.clock,
                 "wall, or cpu: CPU time divided by the threads, for a busy machine")
      ->check(CLI::IsMember({"wall", "cpu"}));
  CLI11_PARSE(app, argc, argv);
  try {
    return goat::bench::main_of(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
