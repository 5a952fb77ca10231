// Parts of a report: source places and kernel names, found in the debugging information (addr2line) if
// there is any.
#pragma once

#include <string>

namespace goat::on_simt {

[[gnu::format(printf, 1, 2)]] std::string formatted(const char* format, ...);

// The source place of the call that returns to `code`: "layernorm.cu:41", or with inlined calls
// "reduce.cuh:33 < layernorm.cu:41".
std::string source_place(const void* code);
std::string source_place(const char* file, int line);  // without folders

// "layernorm_forward (layernorm.cu:20)"
std::string kernel_name(const void* kernel);

}  // namespace goat::on_simt
