// What, beside the program itself, decides on the results of the cpu device.
#pragma once

#include <string>

namespace goat {

// The vector instructions that the kernels use here, the library of the matrix products as it is loaded, and
// whether the processor has bf16 products: "AVX-512, oneDNN 2.6.3, bf16 products".
std::string cpu_arithmetic();

}  // namespace goat
