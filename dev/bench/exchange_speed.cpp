// How fast the ranks of one host exchange memory (kernels/shared_exchange.h), as a table for
// dev/results/communicator.md: exchange_speed [--ranks 2] [--mib 64] [--repeat 20]
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>

#include "kernels/open/open_device.h"
#include "kernels/shared_exchange.h"

using namespace goat;

namespace {
struct Options {
  int ranks = 2, repeat = 20;
  std::size_t mib = 64, slot_kib = 1024;
};

// Prints the best of several times and what each rank receives from the others in it.
void time_call(Communicator& ranks, const char* name, const Options& options, std::size_t received,
               const std::function<void()>& call) {
  double best = 1e30;
  for (int i = 0; i < options.repeat; ++i) {
    ranks.barrier();
    const auto began = std::chrono::steady_clock::now();
    call();
    ranks.barrier();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  if (ranks.rank() == 0)
    std::printf("| %s | %d | %.2f | %.3f | %.2f |\n", name, ranks.size(), static_cast<double>(received) / 1e6,
                1e3 * best, static_cast<double>(received) / best / 1e9);
}

void run_rank(int rank, const Options& options, const std::string& segment) {
  SharedExchangeSetup setup;
  setup.name = segment;
  setup.nonce = 1;
  setup.rank = rank;
  setup.size = options.ranks;
  setup.slot_bytes = options.slot_kib << 10;
  SharedExchange ranks(setup);
  const auto device = open_device("cpu");
  const auto size = static_cast<std::size_t>(options.ranks), part = (options.mib << 20) / size;
  const DeviceBuffer send(*device, size * part), receive(*device, size * part);
  device->set_zero(send.data(), send.bytes());
  device->set_zero(receive.data(), receive.bytes());
  time_call(ranks, "all_to_all", options, (size - 1) * part,
            [&] { ranks.all_to_all(*device, receive.data(), send.data(), part); });
  time_call(ranks, "all_gather", options, (size - 1) * part,
            [&] { ranks.all_gather(*device, receive.data(), send.data(), part); });
  time_call(ranks, "broadcast", options, size * part,
            [&] { ranks.broadcast(*device, receive.data(), size * part, 0); });
  time_call(ranks, "all_gather of 8 bytes", options, (size - 1) * 8,
            [&] { ranks.all_gather(*device, receive.data(), send.data(), 8); });
}
}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Time of the calls of the shared-memory communicator, best of several"};
  app.add_option("--ranks", options.ranks)->check(CLI::Range(2, 64));
  app.add_option("--mib", options.mib, "size of a rank's memory")->check(CLI::Range(1, 4096));
  app.add_option("--slot-kib", options.slot_kib)->check(CLI::Range(1, 65536));
  app.add_option("--repeat", options.repeat)->check(CLI::Range(1, 10000));
  CLI11_PARSE(app, argc, argv);
  const std::string segment = "goat_exchange_speed_" + std::to_string(getpid());
  for (int rank = 1; rank < options.ranks; ++rank)
    if (fork() == 0) {
      run_rank(rank, options, segment);
      _exit(0);
    }
  std::printf("| call | ranks | MB received by each rank | ms | GB/s |\n|---|---|---|---|---|\n");
  run_rank(0, options, segment);
  while (wait(nullptr) > 0) {
  }
}
