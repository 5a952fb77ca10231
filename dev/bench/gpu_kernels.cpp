// Times every kernel of a device at training shapes and prints one JSON: microseconds, and TFLOP/s or GB/s.
//
//   gpu_kernels --device cuda --output kernels.json          all sections, about 30 seconds on an H100
//   gpu_kernels --device simt --tiny                         does every case run? (the times mean nothing)
//   gpu_kernels --section attention_64 --section gemm
//
// Each section runs in a process of its own: what ends one (an illegal access spoils a CUDA context for good,
// a hang) leaves the others their results.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "dev/bench/gpu_bench.h"
#include "kernels/open/open_device.h"

namespace goat::bench {
namespace {

struct Section {
  const char* name;
  void (*run)(Bench&);
};

constexpr Section sections[] = {{"memory", bench_memory},
                                {"attention_64", [](Bench& bench) { bench_attention(bench, 64); }},
                                {"attention_128", [](Bench& bench) { bench_attention(bench, 128); }},
                                {"decode", bench_decode},
                                {"gemm", bench_gemm},
                                {"layers_c4_125m", bench_c4_layers},
                                {"layers_fineweb_1b", bench_1b_layers},
                                {"optimizer", bench_optimizer}};

void write_line(int pipe, const nlohmann::ordered_json& object) {
  const std::string line = object.dump() + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t count = write(pipe, line.data() + done, line.size() - done);
    if (count <= 0) std::_Exit(2);
    done += static_cast<std::size_t>(count);
  }
}

[[noreturn]] void child(const Section& section, const std::string& device_name, const Options& options,
                        int pipe) {
  try {
    const auto device = open_device(device_name);
    write_line(pipe, {{"device", device->info().description}});
    Bench bench(*device, options, [&](const nlohmann::ordered_json& result) {
      write_line(pipe, {{"result", result}});
    });
    section.run(bench);
    device->synchronize();
  } catch (const std::exception& error) {
    write_line(pipe, {{"error", error.what()}});
  }
  std::_Exit(0);  // a spoilt context must not be taken down: that can throw
}

// Everything the child writes until it ends, or until `seconds` have passed; then it is killed. False if it
// was.
bool read_all(int pipe, pid_t process, double seconds, std::string& text) {
  const double end = wall_clock() + seconds;
  char buffer[65536];
  while (true) {
    pollfd waiting{pipe, POLLIN, 0};
    const double left = end - wall_clock();
    if (left <= 0 || poll(&waiting, 1, static_cast<int>(left * 1e3) + 1) == 0) {
      kill(process, SIGKILL);
      return false;
    }
    const ssize_t count = read(pipe, buffer, sizeof buffer);
    if (count <= 0) return true;
    text.append(buffer, static_cast<std::size_t>(count));
  }
}

nlohmann::ordered_json run_section(const Section& section, const std::string& device_name,
                                   const Options& options, std::string& description) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("pipe failed");
  const double start = wall_clock();
  const pid_t process =
      fork();  // before this process touches the GPU: a CUDA context does not survive a fork
  if (process == 0) {
    close(ends[0]);
    child(section, device_name, options, ends[1]);
  }
  close(ends[1]);
  std::string text;
  const bool complete = read_all(ends[0], process, options.section_seconds + 30, text);
  close(ends[0]);
  int status = 0;
  waitpid(process, &status, 0);

  nlohmann::ordered_json report = {{"section", section.name}, {"results", nlohmann::ordered_json::array()}};
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::ordered_json object = nlohmann::ordered_json::parse(line, nullptr, false);
    if (object.contains("device")) description = object["device"];
    if (object.contains("result")) report["results"].push_back(object["result"]);
    if (object.contains("error")) report["error"] = object["error"];
  }
  if (!complete)
    report["error"] = "took too long and was stopped";
  else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    report["error"] = "ended by signal or failure, status " + std::to_string(status);
  report["seconds"] = wall_clock() - start;
  return report;
}

int run(int argc, char** argv) {
  std::string device = "cuda", output;
  std::vector<std::string> wanted;
  Options options;
  CLI::App app("Times every kernel of a device at training shapes.");
  app.add_option("--device", device, "cuda, simt");
  app.add_option("--section", wanted, "only these: memory, attention_64, ..");
  app.add_option("--seconds", options.section_seconds, "after which a section leaves out what is left of it");
  app.add_option("--output", output, "file for the JSON (default: standard output)");
  app.add_flag("--tiny", options.tiny, "smallest shapes, once");
  CLI11_PARSE(app, argc, argv);

  nlohmann::ordered_json all = {{"device", ""}, {"sections", nlohmann::ordered_json::array()}};
  bool failed = false;
  for (const Section& section : sections) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), section.name) == wanted.end()) continue;
    std::string description;
    all["sections"].push_back(run_section(section, device, options, description));
    const nlohmann::ordered_json& report = all["sections"].back();
    if (!description.empty()) all["device"] = description;
    failed = failed || report.contains("error");
    for (const auto& result : report["results"]) failed = failed || result.contains("error");
    std::cerr << section.name << ": " << report["results"].size() << " cases, "
              << report["seconds"].get<double>() << " s"
              << (report.contains("error") ? ", " + report["error"].get<std::string>() : "") << "\n";
    if (!output.empty())
      std::ofstream(output) << all.dump(1) << "\n";  // after every section: what is there is kept
  }
  if (output.empty()) std::cout << all.dump(1) << "\n";
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace goat::bench

int main(int argc, char** argv) { return goat::bench::run(argc, argv); }
