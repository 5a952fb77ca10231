// NCCL, simulated for ranks that are processes of one host: its names, types and contracts, without its
// header. A file of kernels/cuda that calls NCCL by its own names is compiled against this header for the
// simulated GPU, and no symbol is shared with the real library. NCCL's manual holds, and more strictly:
//  * What NCCL forbids, leaves undefined or answers by waiting for ever is found: the call returns an error,
//    and ncclGetLastError() names ranks and source lines. The error stays: later calls return it as well.
//  * A call is an entry of its stream (streams.h). It moves data when it runs; until then, the memory that
//    receives is poisoned. The call that runs it throws what goes wrong then: RankLost if a rank has ended or
//    failed. ncclCommGetAsyncError() tells the same to other threads, and never waits.
//  * ncclSum is added in an order that differs from call to call.
//  * Ranks that wait do so without a time limit, like NCCL's, but not for a rank whose process has ended.
// Options of the name nccl_... (options.h) delay calls and make them fail.
// Not simulated: several ranks of one process, ncclRedOpCreate, the other reductions, registered memory.
#pragma once

#include <climits>
#include <cstddef>
#include <source_location>

#include "kernels/simt/execution.h"

#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_VERSION(X, Y, Z) (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))
#define NCCL_VERSION_CODE NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH)
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR nullptr
#define NCCL_SPLIT_NOCOLOR -1

namespace goat::on_simt {

struct ncclComm;
using ncclComm_t = ncclComm*;

struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];
};

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclNumResults = 8
};

enum ncclRedOp_t { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4, ncclNumOps = 5 };

enum ncclDataType_t {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
};

struct ncclConfig_t {
  std::size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;  // 0: calls return ncclInProgress, and ncclCommGetAsyncError must be asked until it is over
  // Hints about speed, which change nothing here:
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
};

#define NCCL_CONFIG_INITIALIZER                                                                     \
  {                                                                                                 \
    sizeof(::goat::on_simt::ncclConfig_t), 0xcafebeef, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_INT,    \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, \
        NCCL_CONFIG_UNDEF_INT                                                                       \
  }

#if __has_builtin(__builtin_source_location)
using Where = std::source_location;
#else  // clang before 15
struct Where {
  static constexpr Where current(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    return {file, line};
  }
  constexpr const char* file_name() const { return file; }
  constexpr unsigned line() const { return number; }

  const char* file = "";
  unsigned number = 0;
};
#endif

ncclResult_t ncclGetVersion(int* version);
const char* ncclGetErrorString(ncclResult_t result);
// The latest error of this process, of any communicator; the text is valid until this thread asks again.
const char* ncclGetLastError(ncclComm_t comm);

// ---- communicators. A process is one rank of a communicator.

ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
// Returns when all ranks have come.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config, Where where = Where::current());
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* split, ncclConfig_t* config,
                           Where where = Where::current());
// Runs what is enqueued.
ncclResult_t ncclCommFinalize(ncclComm_t comm, Where where = Where::current());
ncclResult_t ncclCommDestroy(ncclComm_t comm, Where where = Where::current());
// For every thread, at any time: ends a call that waits for other ranks. Destroys the communicator.
ncclResult_t ncclCommAbort(ncclComm_t comm, Where where = Where::current());
// For every thread, at any time.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
ncclResult_t ncclCommCount(ncclComm_t comm, int* count, Where where = Where::current());
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank, Where where = Where::current());

// ---- transfers, of `count` elements of device memory

ncclResult_t ncclGroupStart(Where where = Where::current());
ncclResult_t ncclGroupEnd(Where where = Where::current());

ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      Stream stream, Where where = Where::current());
ncclResult_t ncclRecv(void* receive, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      Stream stream, Where where = Where::current());
ncclResult_t ncclAlltoAll(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                          ncclComm_t comm, Stream stream, Where where = Where::current());
ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, Stream stream, Where where = Where::current());
ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, Stream stream, Where where = Where::current());
// Of f32, bf16, f64, i32 and i64, and of ncclSum.
ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t comm, Stream stream,
                               Where where = Where::current());

}  // namespace goat::on_simt
