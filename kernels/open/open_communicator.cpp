#include "kernels/open/open_communicator.h"

#include <stdexcept>

#include "kernels/cuda/open.h"

namespace goat {

namespace {
struct Functions {
  std::string (*version)() = nullptr;
  std::string (*id)() = nullptr;
  std::unique_ptr<Communicator> (*open)(const CommunicatorSetup&) = nullptr;
};

// Null where the build has none.
Functions built_for([[maybe_unused]] const std::string& device) {
#ifdef GOAT_HAS_NCCL
  if (device == "cuda")
    return {on_cuda::communicator_version, on_cuda::communicator_id, on_cuda::open_communicator};
#endif
#ifdef GOAT_HAS_SIMT
  if (device == "simt")
    return {on_simt::communicator_version, on_simt::communicator_id, on_simt::open_communicator};
#endif
  return {};
}

Functions functions_for(const std::string& device) {
  if (const Functions functions = built_for(device); functions.open) return functions;
  if (device != "cuda") throw std::invalid_argument("the device " + device + " has no communicator");
  throw std::invalid_argument(
      "--device cuda: this build has no NCCL, by which several GPUs exchange: install its header (Debian and "
      "Ubuntu with NVIDIA's packages: apt install libnccl-dev; else .venv/bin/pip install nvidia-nccl-cu13) "
      "and build again");
}
}  // namespace

bool has_communicator(const std::string& device) { return built_for(device).open != nullptr; }

std::string communicator_version(const std::string& device) { return functions_for(device).version(); }

std::string communicator_id(const std::string& device) { return functions_for(device).id(); }

std::unique_ptr<Communicator> open_communicator(const std::string& device, const CommunicatorSetup& setup) {
  return functions_for(device).open(setup);
}

void remove_shared_names([[maybe_unused]] const std::string& device,
                         [[maybe_unused]] const std::string& id) noexcept {
#ifdef GOAT_HAS_SIMT
  if (device == "simt") on_simt::remove_shared_names(id);
#endif
}

std::string nccl_text() {
#ifdef GOAT_HAS_NCCL
  return "built with " + on_cuda::nccl_of_build() + ", " + on_cuda::nccl_of_this_machine();
#else
  return "not built (nccl.h and CUDA=ON)";
#endif
}

}  // namespace goat
