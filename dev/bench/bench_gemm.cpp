// Times the GEMMs of a training step in the libraries the CPU device could use: oneDNN's sgemm, in one call
// or (weight gradients) in calls of 512 rows, oneDNN's matmul primitive, OpenBLAS. Usage: OMP_NUM_THREADS=n
// bench_gemm [rounds]. Every round times each library once on each GEMM, so that a disturbance of the machine
// meets all of them; the table shows medians in milliseconds (CPU time on one thread, else wall time) and
// GFLOP/s of the fastest.
#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

// C[m, n] = op(A) op(B) + bias, or C += op(A) op(B). All row-major; A is stored [k, m] and B [n, k] where
// transposed.
struct Gemm {
  std::string name;
  std::int64_t m, n, k;
  bool transpose_a, transpose_b, bias, accumulate;
};

Gemm forward(const std::string& name, std::int64_t rows, std::int64_t in, std::int64_t out, bool bias) {
  return {name + " out = x W^T", rows, out, in, false, true, bias, false};
}
Gemm backward_input(const std::string& name, std::int64_t rows, std::int64_t in, std::int64_t out) {
  return {name + " dx = dout W", rows, in, out, false, false, false, false};
}
Gemm backward_weight(const std::string& name, std::int64_t rows, std::int64_t in, std::int64_t out) {
  return {name + " dW += dout^T x", out, in, rows, true, false, false, true};
}

std::vector<Gemm> training_step() {
  constexpr std::int64_t tokens = 1024, width = 384, padded_vocab = 50304;
  struct Layer {
    const char* name;
    std::int64_t in, out;
  };
  std::vector<Gemm> gemms;
  for (const Layer& layer : {Layer{"qkv 384>1152", width, 3 * width}, Layer{"ff1 384>1536", width, 4 * width},
                             Layer{"ff2 1536>384", 4 * width, width}}) {
    gemms.push_back(forward(layer.name, tokens, layer.in, layer.out, true));
    gemms.push_back(backward_input(layer.name, tokens, layer.in, layer.out));
    gemms.push_back(backward_weight(layer.name, tokens, layer.in, layer.out));
  }
  for (const std::int64_t out : {1000, 1024})
    gemms.push_back(backward_weight("128>" + std::to_string(out) + ", 8192 rows,", 8192, 128, out));
  for (const std::int64_t out : {1536, 2048})
    gemms.push_back(backward_weight("512>" + std::to_string(out) + ", 4096 rows,", 4096, 512, out));
  gemms.push_back(forward("qkv 384>1152, 1 row,", 1, width, 3 * width, true));
  gemms.push_back(forward("head 384>50304, 1 row,", 1, width, padded_vocab, false));
  for (const std::int64_t rows : {128, 256, 512, 1024}) {
    const std::string name = "head 384>50304, " + std::to_string(rows) + " rows,";
    gemms.push_back(forward(name, rows, width, padded_vocab, false));
    gemms.push_back(backward_input(name, rows, width, padded_vocab));
    gemms.push_back(backward_weight(name, rows, width, padded_vocab));
  }
  return gemms;
}

struct Matrices {
  std::vector<float> a, b, bias, c;

  explicit Matrices(const Gemm& gemm)
      : a(static_cast<std::size_t>(gemm.m * gemm.k)),
        b(static_cast<std::size_t>(gemm.k * gemm.n)),
        bias(static_cast<std::size_t>(gemm.n)),
        c(static_cast<std::size_t>(gemm.m * gemm.n)) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (std::vector<float>* values : {&a, &b, &bias})
      for (float& value : *values) value = uniform(random);
  }
};

// A GEMM library has no bias argument: its output starts as the bias, and the product is added to it.
void start_with_bias(const Gemm& gemm, Matrices& matrices) {
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < gemm.m; ++row)
    std::copy(matrices.bias.begin(), matrices.bias.end(), matrices.c.begin() + row * gemm.n);
}

class Library {
 public:
  virtual ~Library() = default;
  virtual void run(Matrices& matrices) = 0;
};

class Sgemm final : public Library {
 public:
  // rows: of a weight gradient, that a call adds up
  Sgemm(const Gemm& gemm, std::int64_t rows) : gemm_(gemm), rows_(gemm.accumulate ? rows : gemm.k) {}
  void run(Matrices& matrices) override {
    if (gemm_.bias) start_with_bias(gemm_, matrices);
    for (std::int64_t row = 0; row < gemm_.k; row += rows_)
      dnnl_sgemm(gemm_.transpose_a ? 'T' : 'N', gemm_.transpose_b ? 'T' : 'N', gemm_.m, gemm_.n,
                 std::min(rows_, gemm_.k - row), 1.0f, matrices.a.data() + row * gemm_.m,
                 gemm_.transpose_a ? gemm_.m : gemm_.k, matrices.b.data() + row * gemm_.n,
                 gemm_.transpose_b ? gemm_.k : gemm_.n, gemm_.bias || gemm_.accumulate ? 1.0f : 0.0f,
                 matrices.c.data(), gemm_.n);
  }

 private:
  Gemm gemm_;
  std::int64_t rows_;
};

class OpenBlas final : public Library {
 public:
  explicit OpenBlas(const Gemm& gemm) : gemm_(gemm) {}
  void run(Matrices& matrices) override {
    if (gemm_.bias) start_with_bias(gemm_, matrices);
    const auto size = [](std::int64_t value) { return static_cast<blasint>(value); };
    cblas_sgemm(CblasRowMajor, gemm_.transpose_a ? CblasTrans : CblasNoTrans,
                gemm_.transpose_b ? CblasTrans : CblasNoTrans, size(gemm_.m), size(gemm_.n), size(gemm_.k),
                1.0f, matrices.a.data(), size(gemm_.transpose_a ? gemm_.m : gemm_.k), matrices.b.data(),
                size(gemm_.transpose_b ? gemm_.k : gemm_.n), gemm_.bias || gemm_.accumulate ? 1.0f : 0.0f,
                matrices.c.data(), size(gemm_.n));
  }

 private:
  Gemm gemm_;
};

// A primitive made once for a GEMM: bias fused, transposes as strides, accumulation as a post-operation.
class Matmul final : public Library {
 public:
  explicit Matmul(const Gemm& gemm) : gemm_(gemm), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using dims = dnnl::memory::dims;
    constexpr auto f32 = dnnl::memory::data_type::f32;
    a_ = {{gemm.m, gemm.k}, f32, gemm.transpose_a ? dims{1, gemm.m} : dims{gemm.k, 1}};
    b_ = {{gemm.k, gemm.n}, f32, gemm.transpose_b ? dims{1, gemm.k} : dims{gemm.n, 1}};
    c_ = {{gemm.m, gemm.n}, f32, dims{gemm.n, 1}};
    if (gemm.bias) bias_ = {{1, gemm.n}, f32, dims{gemm.n, 1}};
    dnnl::primitive_attr attributes;
    if (gemm.accumulate) {
      dnnl::post_ops accumulate;
      accumulate.append_sum(1.0f);
      attributes.set_post_ops(accumulate);
    }
#if DNNL_VERSION_MAJOR >= 3
    const auto plan = gemm.bias ? dnnl::matmul::primitive_desc(engine_, a_, b_, bias_, c_, attributes)
                                : dnnl::matmul::primitive_desc(engine_, a_, b_, c_, attributes);
#else
    const auto description =
        gemm.bias ? dnnl::matmul::desc(a_, b_, bias_, c_) : dnnl::matmul::desc(a_, b_, c_);
    const dnnl::matmul::primitive_desc plan(description, attributes, engine_);
#endif
    primitive_ = dnnl::matmul(plan);
  }
  void run(Matrices& matrices) override {
    std::unordered_map<int, dnnl::memory> arguments{{DNNL_ARG_SRC, {a_, engine_, matrices.a.data()}},
                                                    {DNNL_ARG_WEIGHTS, {b_, engine_, matrices.b.data()}},
                                                    {DNNL_ARG_DST, {c_, engine_, matrices.c.data()}}};
    if (gemm_.bias) arguments.insert({DNNL_ARG_BIAS, {bias_, engine_, matrices.bias.data()}});
    primitive_.execute(stream_, arguments);
    stream_.wait();
  }

 private:
  Gemm gemm_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::memory::desc a_, b_, bias_, c_;
  dnnl::matmul primitive_;
};

// On one thread CPU time, which other programs on the machine hardly disturb; else wall time.
double now_ms() {
  if (omp_get_max_threads() == 1) return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double milliseconds(Library& library, Matrices& matrices) {
  const double start = now_ms();
  library.run(matrices);
  return now_ms() - start;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// The libraries must agree, and each must give the same bits again, or their times mean nothing.
void check_results(const Gemm& gemm, std::vector<std::unique_ptr<Library>>& libraries, Matrices& matrices) {
  std::vector<float> first;
  for (auto& library : libraries) {
    std::vector<float> before;
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::fill(matrices.c.begin(), matrices.c.end(), 0.0f);
      library->run(matrices);
      if (repeat > 0 && matrices.c != before) std::printf("%s: not bitwise repeatable\n", gemm.name.c_str());
      before = matrices.c;
    }
    if (first.empty()) first = before;
    for (std::size_t i = 0; i < first.size(); ++i)
      if (!(std::abs(first[i] - before[i]) <= 1e-4f * std::sqrt(static_cast<float>(gemm.k)))) {
        std::fprintf(stderr, "%s: results differ at %zu: %g and %g\n", gemm.name.c_str(), i, first[i],
                     before[i]);
        std::exit(1);
      }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 15;
  const dnnl_version_t* version = dnnl_version();
  std::printf("%d threads; oneDNN %d.%d.%d; %s, core %s; median %s time of %d interleaved rounds\n\n",
              omp_get_max_threads(), version->major, version->minor, version->patch, openblas_get_config(),
              openblas_get_corename(), omp_get_max_threads() == 1 ? "CPU" : "wall", rounds);
  std::printf(
      "| GEMM | oneDNN sgemm ms | by 512 rows ms | oneDNN matmul ms | OpenBLAS ms | best GFLOP/s |\n"
      "|---|---|---|---|---|---|\n");
  for (const Gemm& gemm : training_step()) {
    Matrices matrices(gemm);
    std::vector<std::unique_ptr<Library>> libraries;
    libraries.push_back(std::make_unique<Sgemm>(gemm, gemm.k));
    libraries.push_back(std::make_unique<Sgemm>(gemm, 512));
    libraries.push_back(std::make_unique<Matmul>(gemm));
    libraries.push_back(std::make_unique<OpenBlas>(gemm));
    check_results(gemm, libraries, matrices);
    std::vector<std::vector<double>> times(libraries.size());
    for (int round = 0; round < rounds; ++round)
      for (std::size_t i = 0; i < libraries.size(); ++i)
        times[i].push_back(milliseconds(*libraries[i], matrices));
    std::vector<double> medians;
    medians.reserve(times.size());
    for (const auto& samples : times) medians.push_back(median(samples));
    const double best = *std::min_element(medians.begin(), medians.end());
    const double operations =
        2.0 * static_cast<double>(gemm.m) * static_cast<double>(gemm.n) * static_cast<double>(gemm.k);
    std::printf("| %s | %.2f | %.2f | %.2f | %.2f | %.0f |\n", gemm.name.c_str(), medians[0], medians[1],
                medians[2], medians[3], operations / best * 1e-6);
    std::fflush(stdout);
  }
}
