// Ranks of a simulated NCCL communicator, as processes that are forked from the test.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include "kernels/cuda/runtime.cuh"
#include "kernels/simt/nccl.h"
#include "kernels/simt/report.h"
#include "test/forked_ranks.h"

namespace goat::test {

inline void require(on_simt::ncclResult_t result) {
  if (result != on_simt::ncclSuccess)
    throw std::runtime_error(std::string(on_simt::ncclGetErrorString(result)) + ": " +
                             on_simt::ncclGetLastError(nullptr));
}

// What a call that fails says: "invalid argument: simt: rank 0 of 2, ...".
inline std::string error_of(on_simt::ncclResult_t result) {
  if (result == on_simt::ncclSuccess) return "no error";
  return std::string(on_simt::ncclGetErrorString(result)) + ": " + on_simt::ncclGetLastError(nullptr);
}

inline on_simt::ncclUniqueId fresh_id() {
  on_simt::ncclUniqueId id;
  require(on_simt::ncclGetUniqueId(&id));
  return id;
}

// A rank with a communicator and a stream, which it leaves to the end of its process unless told otherwise.
struct NcclRank {
  int rank, size;
  on_simt::ncclComm_t comm = nullptr;
  on_simt::Stream stream = on_simt::runtime::create_stream();

  NcclRank(const on_simt::ncclUniqueId& id, int own, int count) : rank(own), size(count) {
    on_simt::ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    require(on_simt::ncclCommInitRankConfig(&comm, size, id, rank, &config));
  }
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  void finish() {
    on_simt::runtime::synchronize(stream);
    require(on_simt::ncclCommDestroy(comm));
    on_simt::runtime::destroy_stream(stream);
  }
};

// Starts processes of which each does body(rank) with a communicator of all.
inline ForkedRanks::Body with_communicator(int size, const std::function<std::string(NcclRank&)>& body) {
  return [id = fresh_id(), size, body](int rank) {
    NcclRank own(id, rank, size);
    return body(own);
  };
}

inline std::string text_of(const on_simt::Where& where) {
  return on_simt::source_place(where.file_name(), static_cast<int>(where.line()));
}

}  // namespace goat::test
