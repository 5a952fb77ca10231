#include "kernels/simt/report.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace goat::on_simt {

std::string formatted(const char* format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  // The analyzer forgets va_start when it reads several files.
  // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized)
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

std::string source_place(const char* file, int line) {
  const char* slash = std::strrchr(file, '/');
  return formatted("%s:%d", slash ? slash + 1 : file, line);
}

namespace {

struct Frame {
  std::string function, place;  // place: "/path/layernorm.cu:41"
};

// The output of addr2line for an address, the innermost inlined function first.
std::vector<Frame> frames_at(const void* code) {
  std::vector<Frame> frames;
  Dl_info object{};
  if (!dladdr(code, &object) || !object.dli_fname) return frames;
  const auto offset =
      static_cast<std::size_t>(static_cast<const char*>(code) - static_cast<const char*>(object.dli_fbase));
  // addr2line needs the address itself in a program that is not position-independent, otherwise the offset
  // in the file.
  const bool absolute = reinterpret_cast<std::uintptr_t>(object.dli_fbase) == 0x400000;
  const std::string command = formatted("addr2line -f -C -i -e '%s' 0x%zx 2>/dev/null", object.dli_fname,
                                        absolute ? reinterpret_cast<std::size_t>(code) : offset);
  std::FILE* pipe = popen(command.c_str(), "re");
  if (!pipe) return frames;
  char line[4096];
  while (std::fgets(line, sizeof line, pipe)) {
    Frame frame;
    frame.function = line;
    if (!std::fgets(line, sizeof line, pipe)) break;
    frame.place = line;
    frame.function.erase(frame.function.find_last_not_of('\n') + 1);
    frame.place.erase(frame.place.find_last_not_of('\n') + 1);
    frame.place.resize(std::min(frame.place.size(), frame.place.find(" (disc")));
    frames.push_back(frame);
  }
  pclose(pipe);
  return frames;
}

std::string without_folders(const std::string& place) {
  const auto slash = place.rfind('/');
  return slash == std::string::npos ? place : place.substr(slash + 1);
}

bool in_kernel_source(const std::string& place) {
  for (const char* other : {"kernels/simt/", "/usr/include/", "/c++/", "/crt/", "cuda_bf16", "??"})
    if (place.find(other) != std::string::npos) return false;
  return true;
}

std::string look_up(const void* code) {
  std::string chain;
  for (const Frame& frame : frames_at(static_cast<const char*>(code) - 1))
    if (in_kernel_source(frame.place)) chain += (chain.empty() ? "" : " < ") + without_folders(frame.place);
  if (!chain.empty()) return chain;
  Dl_info object{};
  if (!dladdr(code, &object) || !object.dli_fname) return "an unknown place";
  return formatted(
      "%s+0x%zx (no line numbers: compile the kernels with -g)", without_folders(object.dli_fname).c_str(),
      static_cast<std::size_t>(static_cast<const char*>(code) - static_cast<const char*>(object.dli_fbase)));
}

}  // namespace

std::string source_place(const void* code) {
  static std::mutex mutex;
  static std::map<const void*, std::string> known;
  const std::lock_guard lock(mutex);
  std::string& place = known[code];
  if (place.empty()) place = look_up(code);
  return place;
}

namespace {

// "void goat::on_simt::(anonymous namespace)::norm<256>(float*, int)" -> "norm<256>"
std::string without_scope_and_parameters(std::string name) {
  for (const char* scope : {"goat::on_simt::", "(anonymous namespace)::"})
    for (auto at = name.find(scope); at != std::string::npos; at = name.find(scope))
      name.erase(at, std::strlen(scope));
  if (name.starts_with("void ")) name.erase(0, 5);  // the result type of a template
  int depth = 0;
  for (std::size_t i = name.size(); name.ends_with(')') && i-- > 0;) {
    depth += (name[i] == ')') - (name[i] == '(');
    if (depth == 0) name.resize(i);
  }
  return name;
}

}  // namespace

std::string kernel_name(const void* kernel) {
  const std::vector<Frame> frames = frames_at(kernel);
  if (frames.empty() || frames.back().function == "??") return "a kernel";
  const std::string name = without_scope_and_parameters(frames.back().function);
  return in_kernel_source(frames.back().place) ? name + " (" + without_folders(frames.back().place) + ")"
                                               : name;
}

}  // namespace goat::on_simt
