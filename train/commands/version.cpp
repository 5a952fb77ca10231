#include "train/commands/version.h"

#include "kernels/open/open_communicator.h"
#include "kernels/open/open_device.h"
#include "train/run/build_commit.h"

// CMakeLists.txt defines GOAT_COMPILER, GOAT_BUILD_TYPE, GOAT_CUDA_CODE (architectures, toolkit and cuBLASLt;
// empty without the CUDA device) and GOAT_HAS_SIMT.
namespace goat {

std::string build_text() {
  return std::string("commit ") + build_commit + ", " + GOAT_COMPILER + ", " + GOAT_BUILD_TYPE + ", " +
         GOAT_CUDA_CODE;
}

std::string version_text() {
  const std::string cuda = GOAT_CUDA_CODE;
  std::string text = std::string("train_gpt_goat  ") + build_commit + "\ncompiler        " + GOAT_COMPILER +
                     ", " + GOAT_BUILD_TYPE + "\ndevice cpu      " + open_device("cpu")->info().description +
                     "\n";
  text += "device cuda     " + (cuda.empty() ? "not built (make CUDA=ON)" : cuda) + "\n";
#ifdef GOAT_HAS_SIMT
  text += "device simt     built\n";
#else
  text += "device simt     not built (make SIMT=ON)\n";
#endif
  return text + "nccl            " + nccl_text() + "\n";
}

}  // namespace goat
