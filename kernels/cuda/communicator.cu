// The communicator of GPUs, by NCCL.
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <source_location>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/communicator.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/nccl.cuh"
#include "kernels/cuda/open.h"
#include "kernels/cuda/runtime.cuh"

namespace goat::GOAT_TARGET {

namespace {
// "NCCL: ncclAllGather at rank 1 of 4: invalid usage (the last error that NCCL has logged)"
std::string text_of(ncclResult_t status, ncclComm_t comm, const std::string& call) {
  const char* const last = ncclGetLastError(comm);
  return "NCCL: " + call + ": " + ncclGetErrorString(status) +
         (last && *last ? " (" + std::string(last) + ")" : "");
}

std::string place_of(int rank, int size) {
  return " at rank " + std::to_string(rank) + " of " + std::to_string(size);
}

// Throws std::runtime_error with NCCL's words and the source line of the call; RankLost where the cause may
// be another rank.
void check(ncclResult_t status, ncclComm_t comm, const std::string& call,
           const std::source_location where = std::source_location::current()) {
  if (status == ncclSuccess) return;
  const std::string text =
      text_of(status, comm, call) + " at " + where.file_name() + ":" + std::to_string(where.line());
  if (status == ncclRemoteError || status == ncclSystemError) throw RankLost(-1, text);
  throw std::runtime_error(text);
}

// How many calls are complete, by an event behind each of them.
class CallCount {
 public:
  // The calls are behind each other in the order of these calls, which come from one thread. Recording may
  // run work of the stream that waits for other ranks: completed() must not wait for it.
  void add(Stream stream) {
    OwnedEvent event = spare_event();
    runtime::record(event.get(), stream);
    push(std::move(event));
  }
  void add_recorded() { push(nullptr); }  // of a graph, whose replays are not counted

  std::uint64_t completed() {
    const std::lock_guard lock(mutex_);
    for (; !enqueued_.empty(); enqueued_.pop_front()) {
      OwnedEvent& oldest = enqueued_.front();
      if (oldest && !runtime::is_complete(oldest.get())) break;
      if (oldest) spare_.push_back(std::move(oldest));
      ++completed_;
    }
    return completed_;
  }

  // Waits for all of them. By the thread that makes them.
  void wait() {
    for (const OwnedEvent& event : enqueued_)
      if (event) runtime::wait(event.get());
  }

 private:
  struct Destroy {
    void operator()(Event event) const noexcept { runtime::destroy_event(event); }
  };
  using OwnedEvent = std::unique_ptr<std::remove_pointer_t<Event>, Destroy>;

  OwnedEvent spare_event() {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) return OwnedEvent(runtime::create_event());
    OwnedEvent event = std::move(spare_.back());
    spare_.pop_back();
    return event;
  }
  void push(OwnedEvent event) {
    const std::lock_guard lock(mutex_);
    enqueued_.push_back(std::move(event));
  }

  std::mutex mutex_;
  std::deque<OwnedEvent> enqueued_;  // null: complete with the one before
  std::vector<OwnedEvent> spare_;
  std::uint64_t completed_ = 0;
};

// A communicator of NCCL whose calls return when they are done (blocking = 1).
class NcclCommunicator final : public Communicator {
 public:
  explicit NcclCommunicator(const CommunicatorSetup& setup) : rank_(setup.rank), size_(setup.size) {
    ncclUniqueId id{};
    if (setup.id.size() != sizeof id.internal)
      throw std::invalid_argument("open_communicator: the id has " + std::to_string(setup.id.size()) +
                                  " bytes, " + std::to_string(sizeof id.internal) + " are expected");
    std::memcpy(id.internal, setup.id.data(), sizeof id.internal);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    check(ncclCommInitRankConfig(&comm_, size_, id, rank_, &config), nullptr,
          "ncclCommInitRankConfig" + place_of(rank_, size_));
  }
  explicit NcclCommunicator(ncclComm_t comm) : comm_(comm) {
    check(ncclCommUserRank(comm, &rank_), comm, "ncclCommUserRank");
    check(ncclCommCount(comm, &size_), comm, "ncclCommCount");
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_to_all(Device& device, void* receive, const void* send, std::size_t bytes) override;
  void all_gather(Device& device, void* receive, const void* send, std::size_t bytes) override;
  void broadcast(Device& device, void* memory, std::size_t bytes, int root) override;
  void reduce_scatter(Device& device, void* receive, const void* send, std::size_t elements,
                      DType dtype) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  bool can_capture() const override { return true; }
  std::uint64_t completed() const override { return calls_.completed(); }
  std::string trouble() const override;

 private:
  template <class Check, class Enqueue>
  void make(Device& device, Check check_arguments, std::size_t bytes, Enqueue enqueue_call);
  template <class Act>
  void guarded(Act act);
  std::string named(const char* call) const { return call + place_of(rank_, size_); }
  void exchange(std::byte* receive, const std::byte* send, std::size_t bytes, Stream stream);

  int rank_ = 0, size_ = 1;
  ncclComm_t comm_ = nullptr;
  mutable CallCount calls_;
  std::exception_ptr failure_;
};

// After an error other ranks may never come: then nothing waits for them.
NcclCommunicator::~NcclCommunicator() {
  bool failed = failure_ || !trouble().empty();
  try {
    if (!failed) calls_.wait();
  } catch (const std::exception&) {
    failed = true;
  }
  failed ? ncclCommAbort(comm_) : ncclCommDestroy(comm_);
}

template <class Act>
void NcclCommunicator::guarded(Act act) {
  if (failure_) std::rethrow_exception(failure_);
  try {
    act();
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

// A call that moves nothing is counted like any other.
template <class Check, class Enqueue>
void NcclCommunicator::make(Device& device, Check check_arguments, std::size_t bytes, Enqueue enqueue_call) {
  guarded([&] {
    check_arguments();
    const auto* own = dynamic_cast<const CudaDevice*>(&device);
    if (!own)
      throw std::logic_error("NCCL moves memory of a GPU: it cannot serve the device " + device.info().name);
    const bool recorded = own->is_capturing();
    if (!recorded) calls_.completed();  // their events are free again
    if (bytes > 0) enqueue_call(own->stream());
    recorded ? calls_.add_recorded() : calls_.add(own->stream());
  });
}

void NcclCommunicator::all_to_all(Device& device, void* receive, const void* send, std::size_t bytes) {
  make(
      device, [&] { check_all_to_all(receive, send, bytes, size_); }, bytes,
      [&](Stream stream) {
        exchange(static_cast<std::byte*>(receive), static_cast<const std::byte*>(send), bytes, stream);
      });
}

// Every rank begins with its neighbour, so that no two send to the same one at the same time.
void NcclCommunicator::exchange(std::byte* receive, const std::byte* send, std::size_t bytes, Stream stream) {
  const auto place = [bytes](int rank) { return static_cast<std::size_t>(rank) * bytes; };
  if (receive != send) runtime::copy(receive + place(rank_), send + place(rank_), bytes, stream);
  if (size_ == 1) return;
  check(ncclGroupStart(), comm_, named("ncclGroupStart"));
  ncclResult_t status = ncclSuccess;
  for (int step = 1; step < size_ && status == ncclSuccess; ++step) {
    const int to = (rank_ + step) % size_, from = (rank_ + size_ - step) % size_;
    status = ncclSend(send + place(to), bytes, ncclUint8, to, comm_, stream);
    if (status == ncclSuccess)
      status = ncclRecv(receive + place(from), bytes, ncclUint8, from, comm_, stream);
  }
  const ncclResult_t end = ncclGroupEnd();  // after a failure too: the group is the thread's
  check(status, comm_, named("ncclSend, ncclRecv"));
  check(end, comm_, named("ncclGroupEnd"));
}

void NcclCommunicator::all_gather(Device& device, void* receive, const void* send, std::size_t bytes) {
  make(
      device, [&] { check_all_gather(receive, send, bytes, rank_, size_); }, bytes,
      [&](Stream stream) {
        check(ncclAllGather(send, receive, bytes, ncclUint8, comm_, stream), comm_, named("ncclAllGather"));
      });
}

void NcclCommunicator::broadcast(Device& device, void* memory, std::size_t bytes, int root) {
  make(
      device, [&] { check_broadcast(memory, bytes, root, size_); }, bytes,
      [&](Stream stream) {
        check(ncclBroadcast(memory, memory, bytes, ncclUint8, root, comm_, stream), comm_,
              named("ncclBroadcast"));
      });
}

void NcclCommunicator::reduce_scatter(Device& device, void* receive, const void* send, std::size_t elements,
                                      DType dtype) {
  make(
      device, [&] { check_reduce_scatter(receive, send, elements, dtype, size_); }, elements,
      [&](Stream stream) {
        const ncclDataType_t type = dtype == DType::bf16 ? ncclBfloat16 : ncclFloat32;
        check(ncclReduceScatter(send, receive, elements, type, ncclSum, comm_, stream), comm_,
              named("ncclReduceScatter"));
      });
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key) {
  std::unique_ptr<Communicator> part;
  guarded([&] {
    ncclComm_t comm = nullptr;
    check(ncclCommSplit(comm_, color, key, &comm, nullptr), comm_, named("ncclCommSplit"));
    part = std::make_unique<NcclCommunicator>(comm);
  });
  return part;
}

std::string NcclCommunicator::trouble() const {
  ncclResult_t error = ncclSuccess;
  if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &error); asked != ncclSuccess) error = asked;
  if (error == ncclSuccess || error == ncclInProgress) return "";
  return text_of(error, comm_, "an error" + place_of(rank_, size_));
}
}  // namespace

std::string communicator_id() {
  ncclUniqueId id{};
  check(ncclGetUniqueId(&id), nullptr, "ncclGetUniqueId");
  return {id.internal, sizeof id.internal};
}

// NVLink's switches (NVLS) add in an order that differs from call to call.
std::unique_ptr<Communicator> open_communicator(const CommunicatorSetup& setup) {
  constexpr int unless_set = 0;
  if (setup.sums) ::setenv("NCCL_ALGO", "^NVLS", unless_set);
  return std::make_unique<NcclCommunicator>(setup);
}

std::string communicator_version() {
  int code = 0;
  check(ncclGetVersion(&code), nullptr, "ncclGetVersion");
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." +
         std::to_string(code % 100);
}

}  // namespace goat::GOAT_TARGET
