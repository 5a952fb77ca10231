#include "kernels/cpu/bf16_product.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <stdexcept>
#include <string>
#include <tuple>

#include "kernels/cpu/bf16.h"
#include "kernels/cpu/simd.h"
#include "kernels/workspace.h"

namespace goat {

namespace {
constexpr std::int64_t chunk = 16384;  // elements that a thread rounds at a time

SIMD_CLONES void round_chunk(Bf16* to, const float* from, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) store(to[i], from[i]);
}
SIMD_CLONES void round_chunk(float* to, const float* from, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    Bf16 rounded;
    store(rounded, from[i]);
    to[i] = to_float(rounded);
  }
}

// Threads own chunks. Reads 4 bytes an element and writes 2 or 4.
template <class T>
T* rounded(T* to, const float* from, std::int64_t count) {
#pragma omp parallel for schedule(static)
  for (std::int64_t first = 0; first < count; first += chunk)
    round_chunk(to + first, from + first, std::min(chunk, count - first));
  return to;
}

// The copies of both factors in a workspace.
template <class T>
struct Copies {
  T *left, *right;
  std::size_t bytes;

  Copies(const ProductShape& shape, void* workspace) {
    WorkspaceArrays arrays(workspace);
    left = arrays.next<T>(shape.m * shape.k);
    right = arrays.next<T>(shape.k * shape.n);
    bytes = arrays.bytes();
  }
};

void check(dnnl_status_t status, const ProductShape& shape) {
  if (status == dnnl_success) return;
  throw std::runtime_error("oneDNN's product of " + std::to_string(shape.m) + " x " +
                           std::to_string(shape.k) + " by " + std::to_string(shape.k) + " x " +
                           std::to_string(shape.n) + " in bf16 failed with status " + std::to_string(status));
}

dnnl::engine& engine() {
  static dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

dnnl::memory::desc described(std::int64_t rows, std::int64_t columns, bool transposed,
                             dnnl::memory::data_type type) {
  const dnnl::memory::dims strides =
      transposed ? dnnl::memory::dims{1, rows} : dnnl::memory::dims{columns, 1};
  return {{rows, columns}, type, strides};
}

// A product that oneDNN has prepared, for the number of threads at that time.
struct Prepared {
  dnnl::matmul::primitive_desc description;
  dnnl::matmul product;

  Prepared(const ProductShape& shape, bool accumulate)
      : description(describe(shape, accumulate)), product(description) {}

  static dnnl::matmul::primitive_desc describe(const ProductShape& shape, bool accumulate) {
    using Type = dnnl::memory::data_type;
    const auto left = described(shape.m, shape.k, shape.left_transposed, Type::bf16),
               right = described(shape.k, shape.n, shape.right_transposed, Type::bf16),
               out = described(shape.m, shape.n, false, Type::f32);
    dnnl::primitive_attr attributes;
    if (accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
#if DNNL_VERSION_MAJOR >= 3
    return {engine(), left, right, out, attributes};
#else
    return {dnnl::matmul::desc(left, right, out), attributes, engine()};
#endif
  }
};

// To prepare a product takes longer than a small one. A run has a few dozen shapes.
const Prepared& prepared(const ProductShape& s, bool accumulate) {
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, bool, bool, int>;
  static std::mutex mutex;
  static std::map<Key, Prepared> all;
  const Key key{s.m, s.n, s.k, s.left_transposed, s.right_transposed, accumulate, omp_get_max_threads()};
  const std::lock_guard lock(mutex);
  const auto found = all.find(key);
  return found != all.end() ? found->second : all.try_emplace(key, s, accumulate).first->second;
}

void multiply_by_library(const ProductShape& shape, float* out, const float* left, const float* right,
                         bool accumulate, void* workspace) {
  const Copies<Bf16> copies(shape, workspace);
  try {
    const Prepared& matmul = prepared(shape, accumulate);
    rounded(copies.left, left, shape.m * shape.k);
    rounded(copies.right, right, shape.k * shape.n);
    dnnl::stream stream(engine());
    matmul.product.execute(stream,
                           {{DNNL_ARG_SRC, {matmul.description.src_desc(), engine(), copies.left}},
                            {DNNL_ARG_WEIGHTS, {matmul.description.weights_desc(), engine(), copies.right}},
                            {DNNL_ARG_DST, {matmul.description.dst_desc(), engine(), out}}});
    stream.wait();
  } catch (const dnnl::error& error) {
    check(error.status, shape);
  }
}

void multiply_rounded(const ProductShape& shape, float* out, const float* left, const float* right,
                      bool accumulate, void* workspace) {
  const Copies<float> copies(shape, workspace);
  const std::int64_t left_stride = shape.left_transposed ? shape.m : shape.k,
                     right_stride = shape.right_transposed ? shape.k : shape.n;
  check(dnnl_sgemm(shape.left_transposed ? 'T' : 'N', shape.right_transposed ? 'T' : 'N', shape.m, shape.n,
                   shape.k, 1.0f, rounded(copies.left, left, shape.m * shape.k), left_stride,
                   rounded(copies.right, right, shape.k * shape.n), right_stride, accumulate ? 1.0f : 0.0f,
                   out, shape.n),
        shape);
}
}  // namespace

// A set of instructions has the bits of all sets that it includes.
Bf16Form bf16_form() {
  const unsigned has = dnnl_get_effective_cpu_isa(), needed = dnnl_cpu_isa_avx512_core_amx;
  return (has & needed) == needed ? Bf16Form::library : Bf16Form::rounded;
}

std::size_t bf16_workspace(Bf16Form form, const ProductShape& shape) {
  return form == Bf16Form::library ? Copies<Bf16>(shape, nullptr).bytes : Copies<float>(shape, nullptr).bytes;
}

void multiply_bf16(Bf16Form form, const ProductShape& shape, float* out, const float* left,
                   const float* right, bool accumulate, void* workspace) {
  if (shape.m == 0 || shape.n == 0) return;
  if (shape.k == 0) {
    if (!accumulate) std::fill_n(out, shape.m * shape.n, 0.0f);
    return;
  }
  const auto multiply = form == Bf16Form::library ? multiply_by_library : multiply_rounded;
  multiply(shape, out, left, right, accumulate, workspace);
}

}  // namespace goat
