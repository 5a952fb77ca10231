// The simulated NCCL has the names, types and values of the real one, where its header is installed.
#include "kernels/simt/nccl.h"

#if __has_include(<nccl.h>)
#include <cstddef>
#include <type_traits>

#include "test/catch.h"

namespace {
const goat::on_simt::ncclConfig_t simulated_config = NCCL_CONFIG_INITIALIZER;
constexpr int simulated_no_color = NCCL_SPLIT_NOCOLOR, simulated_id_bytes = NCCL_UNIQUE_ID_BYTES;
constexpr int simulated_version_2_9 = NCCL_VERSION(2, 9, 1), simulated_version_2_8 = NCCL_VERSION(2, 8, 1);
}  // namespace

#undef NCCL_MAJOR
#undef NCCL_MINOR
#undef NCCL_PATCH
#undef NCCL_VERSION
#undef NCCL_VERSION_CODE
#undef NCCL_UNIQUE_ID_BYTES
#undef NCCL_CONFIG_UNDEF_INT
#undef NCCL_CONFIG_UNDEF_PTR
#undef NCCL_CONFIG_INITIALIZER
#undef NCCL_SPLIT_NOCOLOR
#include <nccl.h>

namespace {
namespace simt = goat::on_simt;

// The simulated type of a real one.
template <class T>
struct Simulated {
  using Type = T;
};
template <class T>
struct Simulated<T*> {
  using Type = typename Simulated<T>::Type*;
};
#define GOAT_SIMULATED(Real, Twin) \
  template <>                      \
  struct Simulated<Real> {         \
    using Type = Twin;             \
  }
GOAT_SIMULATED(ncclComm_t, simt::ncclComm_t);
GOAT_SIMULATED(ncclUniqueId, simt::ncclUniqueId);
GOAT_SIMULATED(ncclConfig_t, simt::ncclConfig_t);
GOAT_SIMULATED(ncclResult_t, simt::ncclResult_t);
GOAT_SIMULATED(ncclDataType_t, simt::ncclDataType_t);
GOAT_SIMULATED(ncclRedOp_t, simt::ncclRedOp_t);
GOAT_SIMULATED(cudaStream_t, simt::Stream);
#undef GOAT_SIMULATED

// Whether a simulated function takes and returns what the real one does, but for the place of the call.
template <class Twin, class Result, class... Arguments>
constexpr bool agree(Result (*)(Arguments...), Twin*) {
  using R = typename Simulated<Result>::Type;
  return std::is_same_v<Twin, R(typename Simulated<Arguments>::Type...)> ||
         std::is_same_v<Twin, R(typename Simulated<Arguments>::Type..., simt::Where)>;
}

#define GOAT_AGREE(name) static_assert(agree(&::name, &simt::name), #name)
GOAT_AGREE(ncclGetVersion);
GOAT_AGREE(ncclGetErrorString);
GOAT_AGREE(ncclGetLastError);
GOAT_AGREE(ncclGetUniqueId);
GOAT_AGREE(ncclCommInitRankConfig);
GOAT_AGREE(ncclCommSplit);
GOAT_AGREE(ncclCommFinalize);
GOAT_AGREE(ncclCommDestroy);
GOAT_AGREE(ncclCommAbort);
GOAT_AGREE(ncclCommGetAsyncError);
GOAT_AGREE(ncclCommCount);
GOAT_AGREE(ncclCommUserRank);
GOAT_AGREE(ncclGroupStart);
GOAT_AGREE(ncclGroupEnd);
GOAT_AGREE(ncclSend);
GOAT_AGREE(ncclRecv);
GOAT_AGREE(ncclAllGather);
GOAT_AGREE(ncclBroadcast);
GOAT_AGREE(ncclReduceScatter);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
GOAT_AGREE(ncclAlltoAll);
#endif
#undef GOAT_AGREE

#define GOAT_EQUAL(name) static_assert(static_cast<int>(::name) == static_cast<int>(simt::name), #name)
GOAT_EQUAL(ncclSuccess);
GOAT_EQUAL(ncclUnhandledCudaError);
GOAT_EQUAL(ncclSystemError);
GOAT_EQUAL(ncclInternalError);
GOAT_EQUAL(ncclInvalidArgument);
GOAT_EQUAL(ncclInvalidUsage);
GOAT_EQUAL(ncclRemoteError);
GOAT_EQUAL(ncclInProgress);
GOAT_EQUAL(ncclNumResults);
GOAT_EQUAL(ncclSum);
GOAT_EQUAL(ncclProd);
GOAT_EQUAL(ncclMax);
GOAT_EQUAL(ncclMin);
GOAT_EQUAL(ncclAvg);
GOAT_EQUAL(ncclNumOps);
GOAT_EQUAL(ncclInt8);
GOAT_EQUAL(ncclChar);
GOAT_EQUAL(ncclUint8);
GOAT_EQUAL(ncclInt32);
GOAT_EQUAL(ncclInt);
GOAT_EQUAL(ncclUint32);
GOAT_EQUAL(ncclInt64);
GOAT_EQUAL(ncclUint64);
GOAT_EQUAL(ncclFloat16);
GOAT_EQUAL(ncclHalf);
GOAT_EQUAL(ncclFloat32);
GOAT_EQUAL(ncclFloat);
GOAT_EQUAL(ncclFloat64);
GOAT_EQUAL(ncclDouble);
GOAT_EQUAL(ncclBfloat16);
GOAT_EQUAL(ncclFloat8e4m3);
GOAT_EQUAL(ncclFloat8e5m2);
#undef GOAT_EQUAL
}  // namespace

TEST_CASE("nccl: the names, types and values are the real library's") {
  static_assert(simulated_no_color == NCCL_SPLIT_NOCOLOR && simulated_id_bytes == NCCL_UNIQUE_ID_BYTES);
  static_assert(sizeof(simt::ncclUniqueId) == sizeof(ncclUniqueId));
  static_assert(simulated_version_2_9 == NCCL_VERSION(2, 9, 1) &&
                simulated_version_2_8 == NCCL_VERSION(2, 8, 1));
  const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  CHECK(simulated_config.magic == config.magic);
  CHECK(simulated_config.blocking == config.blocking);
  CHECK(simulated_config.cgaClusterSize == config.cgaClusterSize);
  CHECK(simulated_config.minCTAs == config.minCTAs);
  CHECK(simulated_config.maxCTAs == config.maxCTAs);
  CHECK(simulated_config.netName == config.netName);
  CHECK(simulated_config.splitShare == config.splitShare);
}
#else
#include "test/catch.h"

TEST_CASE("nccl: the real library's header is not installed, and the names are not compared") {
  int version = 0;
  CHECK(goat::on_simt::ncclGetVersion(&version) == goat::on_simt::ncclSuccess);
  CHECK(version == 22809);
}
#endif
