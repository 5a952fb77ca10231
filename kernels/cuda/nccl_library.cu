// NCCL's functions, defined by their own names: each passes its call on to the library, which is loaded when
// the first of them is called. So the program starts where there is no NCCL, and one rank needs none.
#include <dlfcn.h>
#include <link.h>
#include <nccl.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "kernels/cuda/open.h"

namespace goat::on_cuda {

namespace {
#define GOAT_FOR_EACH_NCCL_FUNCTION(Do)                                                      \
  Do(ncclGetVersion) Do(ncclGetUniqueId) Do(ncclGetErrorString) Do(ncclGetLastError)         \
      Do(ncclCommInitRankConfig) Do(ncclCommSplit) Do(ncclCommCount) Do(ncclCommUserRank)    \
          Do(ncclCommGetAsyncError) Do(ncclCommDestroy) Do(ncclCommAbort) Do(ncclGroupStart) \
              Do(ncclGroupEnd) Do(ncclSend) Do(ncclRecv) Do(ncclAllGather) Do(ncclBroadcast) \
                  Do(ncclReduceScatter)

struct Nccl {
  std::string path;
  int version = 0;
#define GOAT_DECLARE_POINTER(name) decltype(&::name) name = nullptr;
  GOAT_FOR_EACH_NCCL_FUNCTION(GOAT_DECLARE_POINTER)
#undef GOAT_DECLARE_POINTER
};

std::string version_text(int code) {
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." +
         std::to_string(code % 100);
}

std::string how_to_install() {
  return "install NCCL " + version_text(NCCL_VERSION_CODE) +
         " or newer (Debian and Ubuntu with NVIDIA's packages: apt install libnccl2; else pip install "
         "nvidia-nccl-cu" +
         std::to_string(CUDART_VERSION / 1000) +
         "), and where it is no folder of the system's, set LD_LIBRARY_PATH to the folder of libnccl.so.2, "
         "or GOAT_NCCL to the file";
}

[[noreturn]] void refuse(const std::string& cause) {
  throw std::runtime_error("several GPUs exchange by NCCL, but " + cause + "; " + how_to_install());
}

// Where the library lies that was found by its name.
std::string path_of(void* library, const std::string& name) {
  link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || !map || !*map->l_name) return name;
  return map->l_name;
}

template <class Function>
void find(void* library, const char* name, const std::string& path, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (!function) refuse(path + " has no " + name);
}

// A newer library serves a program that was built for an older one; the reverse is not promised.
Nccl load() {
  const char* const chosen = std::getenv("GOAT_NCCL");
  const std::string name = chosen && *chosen ? chosen : "libnccl.so.2";
  void* const library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) refuse("the library was not found (" + std::string(::dlerror()) + ")");
  Nccl nccl;
  nccl.path = path_of(library, name);
#define GOAT_FIND(function) find(library, #function, nccl.path, nccl.function);
  GOAT_FOR_EACH_NCCL_FUNCTION(GOAT_FIND)
#undef GOAT_FIND
  if (nccl.ncclGetVersion(&nccl.version) != ncclSuccess) refuse(nccl.path + " does not tell its version");
  if (nccl.version / 100 < NCCL_VERSION_CODE / 100)
    refuse(nccl.path + " is version " + version_text(nccl.version) + ", too old for this build");
  return nccl;
}

const Nccl& nccl() {
  static const Nccl loaded = load();
  return loaded;
}
}  // namespace

std::string nccl_of_build() { return version_text(NCCL_VERSION_CODE); }

std::string nccl_of_this_machine() {
  try {
    return "found " + version_text(nccl().version) + " in " + nccl().path;
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

}  // namespace goat::on_cuda

using goat::on_cuda::nccl;

ncclResult_t ncclGetVersion(int* version) { return nccl().ncclGetVersion(version); }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return nccl().ncclGetUniqueId(id); }
const char* ncclGetErrorString(ncclResult_t result) { return nccl().ncclGetErrorString(result); }
const char* ncclGetLastError(ncclComm_t comm) { return nccl().ncclGetLastError(comm); }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return nccl().ncclCommInitRankConfig(comm, size, id, rank, config);
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* split, ncclConfig_t* config) {
  return nccl().ncclCommSplit(comm, color, key, split, config);
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) { return nccl().ncclCommCount(comm, count); }
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  return nccl().ncclCommUserRank(comm, rank);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return nccl().ncclCommGetAsyncError(comm, error);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return nccl().ncclCommDestroy(comm); }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return nccl().ncclCommAbort(comm); }

ncclResult_t ncclGroupStart() { return nccl().ncclGroupStart(); }
ncclResult_t ncclGroupEnd() { return nccl().ncclGroupEnd(); }
ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return nccl().ncclSend(send, count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void* receive, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return nccl().ncclRecv(receive, count, type, peer, comm, stream);
}
ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return nccl().ncclAllGather(send, receive, count, type, comm, stream);
}
ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return nccl().ncclBroadcast(send, receive, count, type, root, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  return nccl().ncclReduceScatter(send, receive, count, type, operation, comm, stream);
}
