#include "kernels/simt/options.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>

namespace goat::on_simt {

namespace {

[[noreturn]] void reject(const char* variable, const char* value, const std::string& allowed) {
  throw std::runtime_error(std::string("environment variable ") + variable + " is '" + value +
                           "': it must be " + allowed);
}

template <class T>
void read_choice(const char* variable, std::initializer_list<std::pair<const char*, T>> choices, T& result) {
  const char* value = std::getenv(variable);
  if (!value) return;
  std::string allowed;
  for (const auto& [name, choice] : choices) {
    if (std::strcmp(value, name) == 0) {
      result = choice;
      return;
    }
    allowed += (allowed.empty() ? "" : ", ") + std::string(name);
  }
  reject(variable, value, "one of " + allowed);
}

template <class T>
void read_number(const char* variable, T least, T& result) {
  const char* value = std::getenv(variable);
  if (!value) return;
  const char* end = value + std::strlen(value);
  T number{};
  const auto [last, status] = std::from_chars(value, end, number);
  if (status != std::errc{} || last != end || number < least)
    reject(variable, value, "a whole number, " + std::to_string(least) + " or more");
  result = number;
}

// "rank:call:fault"
void read_failure(const char* variable, NcclFailure& result) {
  const char* value = std::getenv(variable);
  if (!value) return;
  const char* end = value + std::strlen(value);
  const auto rank = std::from_chars(value, end, result.rank);
  const bool has_call = rank.ec == std::errc{} && result.rank >= 0 && rank.ptr != end && *rank.ptr == ':';
  const auto call = std::from_chars(has_call ? rank.ptr + 1 : end, end, result.call);
  const std::string fault = call.ptr != end ? call.ptr + 1 : "";
  constexpr std::pair<const char*, NcclFault> faults[] = {{"error", NcclFault::error},
                                                          {"async", NcclFault::async},
                                                          {"silence", NcclFault::silence},
                                                          {"death", NcclFault::death}};
  if (has_call && call.ec == std::errc{} && result.call > 0 && *call.ptr == ':')
    for (const auto& [name, known] : faults)
      if (fault == name) result.fault = known;
  if (result.fault == NcclFault::none)
    reject(variable, value, "rank:call:fault, call 1 or more, fault one of error, async, silence, death");
}

}  // namespace

Options environment_options() {
  Options result;
  read_choice<Order>(
      "GOAT_SIMT_ORDER",
      {{"ascending", Order::ascending}, {"descending", Order::descending}, {"random", Order::random}},
      result.order);
  read_choice<Copies>("GOAT_SIMT_COPIES",
                      {{"early", Copies::early}, {"late", Copies::late}, {"random", Copies::random}},
                      result.copies);
  read_choice<Streams>("GOAT_SIMT_STREAMS",
                       {{"at_once", Streams::at_once},
                        {"late", Streams::late},
                        {"random", Streams::random},
                        {"urgent_first", Streams::urgent_first}},
                       result.streams);
  read_choice<int>("GOAT_SIMT_ARCHITECTURE", {{"80", 80}, {"86", 86}, {"89", 89}, {"90", 90}, {"120", 120}},
                   result.architecture);
  read_choice<bool>("GOAT_SIMT_LEAKS", {{"0", false}, {"1", true}}, result.leaks);
  read_choice<bool>("GOAT_SIMT_STREAM_RACES", {{"0", false}, {"1", true}}, result.stream_races);
  read_number("GOAT_SIMT_SEED", std::uint64_t{0}, result.seed);
  read_number("GOAT_SIMT_THREADS", 0, result.threads);
  read_number("GOAT_SIMT_MULTIPROCESSORS", 1, result.multiprocessors);
  read_number("GOAT_SIMT_NCCL_DELAY", 0, result.nccl_delay);
  read_choice<NcclBlock>(
      "GOAT_SIMT_NCCL_BLOCK",
      {{"never", NcclBlock::never}, {"random", NcclBlock::random}, {"always", NcclBlock::always}},
      result.nccl_block);
  read_failure("GOAT_SIMT_NCCL_FAIL", result.nccl_failure);
  return result;
}

Options& options() {
  static Options current = environment_options();
  return current;
}

std::size_t shared_memory_limit(int architecture) {
  constexpr std::size_t KiB = 1024;
  switch (architecture) {
    case 80: return 163 * KiB;
    case 86:
    case 89:
    case 120: return 99 * KiB;
    case 90: return 227 * KiB;
    default:
      throw std::invalid_argument("simt: architecture " + std::to_string(architecture) +
                                  " is not one of 80, 86, 89, 90, 120");
  }
}

}  // namespace goat::on_simt
