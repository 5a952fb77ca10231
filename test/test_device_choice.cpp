// What "auto" takes and what is said of a GPU that cannot be used, for everything that looking for one finds.
#include "kernels/device_choice.h"
#include "kernels/device_lost.h"
#include "test/catch.h"

using goat::choose_device;
using goat::gpu_of;
using goat::GpuSearch;
using goat::obstacle_of;
using Result = goat::GpuSearch::Result;

TEST_CASE("device auto: takes a GPU that this binary has code for") {
  const GpuSearch search{Result::found, "NVIDIA H100, compute capability 9.0", "90a", ""};
  CHECK(choose_device(search).name == "cuda");
  CHECK(obstacle_of(search).cause.empty());
}

TEST_CASE("device auto: falls back to the cpu wherever a GPU cannot be used, and says why") {
  for (const Result result : {Result::not_built, Result::no_driver, Result::old_driver, Result::none,
                              Result::too_old, Result::no_code}) {
    const GpuSearch search{result, "A GPU, compute capability 1.2", "12", "CUDA's words"};
    CHECK(choose_device(search).name == "cpu");
    CHECK_FALSE(obstacle_of(search).cause.empty());
    CHECK_FALSE(obstacle_of(search).remedy.empty());
    CHECK_THAT(choose_device(search).reason, ContainsSubstring(obstacle_of(search).cause));
  }
}

TEST_CASE("device: for a GPU without code in this binary, the build that brings it is named") {
  const std::string text =
      choose_device({Result::no_code, "RTX 5090, compute capability 12.0", "120", "no kernel image"}).reason;
  for (const char* part : {"RTX 5090, compute capability 12.0", "no kernel image",
                           "make CUDA=ON ARCHITECTURES=120", "-DGOAT_CUDA_ARCHITECTURES=120"})
    CHECK_THAT(text, ContainsSubstring(part));
}

TEST_CASE("device: for a GPU that no build runs on, none is named") {
  const std::string text =
      choose_device({Result::too_old, "Tesla T4, compute capability 7.5", "75", ""}).reason;
  CHECK_THAT(text, ContainsSubstring("Tesla T4, compute capability 7.5"));
  CHECK_THAT(text, ContainsSubstring("8.0"));
  CHECK(text.find("make") == std::string::npos);
}

TEST_CASE("device: an old driver is named with the CUDA that it knows, beside that of this build") {
  const auto obstacle = obstacle_of({Result::old_driver, "", "", "insufficient", 12040, 13010});
  CHECK_THAT(obstacle.cause, ContainsSubstring("CUDA up to 12.4") && ContainsSubstring("with CUDA 13.1"));
  CHECK_THAT(obstacle.remedy,
             ContainsSubstring("update the driver") && ContainsSubstring("CUDA 12.4 or older"));
}

TEST_CASE("device: without a driver, the driver is what to install") {
  const auto obstacle = obstacle_of({Result::no_driver, "", "", "insufficient", 0, 13000});
  CHECK_THAT(obstacle.cause, ContainsSubstring("driver is not installed"));
  CHECK_THAT(obstacle.remedy, ContainsSubstring("nvidia-smi"));
  CHECK(obstacle.remedy.find("make") == std::string::npos);
}

TEST_CASE("cuda error: what ends the context is told from what does not, and says where to look") {
  const auto thrown = [](const std::string& name) -> std::string {
    try {
      goat::throw_cuda_error(name, "CUDA's words", "gemm.cu:7");
    } catch (const goat::DeviceLost& error) {
      return std::string("lost: ") + error.what();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
  };
  for (const char* name : {"cudaErrorECCUncorrectable", "cudaErrorUnknown", "cudaErrorIllegalAddress",
                           "cudaErrorLaunchFailure", "cudaErrorMisalignedAddress"}) {
    INFO(name);
    CHECK_THAT(thrown(name), ContainsSubstring("lost: ") && ContainsSubstring(name) &&
                                 ContainsSubstring("CUDA's words") && ContainsSubstring("gemm.cu:7") &&
                                 ContainsSubstring("dmesg") && ContainsSubstring("nvidia-smi"));
  }
  CHECK_THAT(thrown("cudaErrorECCUncorrectable"), ContainsSubstring("fault of the GPU,"));
  CHECK_THAT(thrown("cudaErrorIllegalAddress"), ContainsSubstring("fault of a kernel"));
  for (const char* name :
       {"cudaErrorInvalidValue", "cudaErrorMemoryAllocation", "cudaErrorInvalidConfiguration"})
    CHECK(thrown(name) == "CUDA: CUDA's words (" + std::string(name) + ") at gemm.cu:7");
}

TEST_CASE("device: without GPU code or GPU, the next step is named") {
  CHECK_THAT(obstacle_of({}).remedy, ContainsSubstring("make CUDA=ON"));
  CHECK_THAT(obstacle_of({Result::none, "", "", "driver too old"}).cause,
             ContainsSubstring("driver too old"));
  CHECK_THAT(obstacle_of({Result::none}).remedy, ContainsSubstring("nvidia-smi"));
}

TEST_CASE("a rank takes the GPU of its place on the host, or the only one that it can see") {
  CHECK(gpu_of({0, 1}, 1) == 0);
  CHECK(gpu_of({0, 1}, 8) == 0);
  CHECK(gpu_of({7, 8}, 8) == 7);
  CHECK(gpu_of({1, 2}, 8) == 1);
  CHECK(gpu_of({3, 4}, 1) == 0);
  CHECK_THROWS_WITH(gpu_of({0, 4}, 2),
                    "there are 4 ranks on this host, and 2 GPUs that they can see: start one rank a GPU "
                    "(--ranks 2), or give --device cpu");
}
