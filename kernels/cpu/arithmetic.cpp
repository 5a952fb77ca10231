#include "kernels/cpu/arithmetic.h"

#include <oneapi/dnnl/dnnl.h>

#include "kernels/cpu/bf16_product.h"

namespace goat {

namespace {
const char* vector_unit() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    return "AVX-512";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "AVX2";
#endif
  return "baseline SIMD";
}
}  // namespace

std::string cpu_arithmetic() {
  const dnnl_version_t& library = *dnnl_version();
  return std::string(vector_unit()) + ", oneDNN " + std::to_string(library.major) + "." +
         std::to_string(library.minor) + "." + std::to_string(library.patch) +
         (bf16_form() == Bf16Form::library ? ", bf16 products" : "");
}

}  // namespace goat
