#include "kernels/simt/nccl.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <map>
#include <random>
#include <tuple>

#include "kernels/cuda/open.h"
#include "kernels/simt/nccl_comm.h"
#include "kernels/simt/nccl_random.h"
#include "kernels/simt/nccl_transfer.h"
#include "kernels/simt/options.h"

namespace goat::on_simt {

namespace {
// Calls that wait for ncclGroupEnd of this thread.
struct Group {
  int depth = 0;
  std::vector<NcclCall> calls;
  std::string opened;  // by which call
  ncclResult_t error = ncclSuccess;
};
thread_local Group group;

NcclProcess& process() { return NcclProcess::instance(); }

std::string call_text(const char* name, const Where& where) {
  return std::string(name) + " (" + place_of(where) + ")";
}

// This thread's use of a communicator, or of none; until the end of the call, or of the group it is part of.
class Use {
 public:
  Use(ncclComm_t comm, const std::string& call) : comm_(comm) {
    if (!process().is_known(comm))
      throw NcclMisuse(ncclInvalidArgument, call + ": the communicator is null, or no communicator");
    const std::string name = comm->name() + ", " + call + ": ";
    if (comm->ended)
      throw NcclMisuse(ncclInvalidArgument,
                       name + "its communicator has ended by " + process().end_of(*comm));
    const int thread = gettid();
    if (int other = 0; !comm->thread.compare_exchange_strong(other, thread) && other != thread)
      throw NcclMisuse(ncclInvalidUsage,
                       name +
                           "another thread of this process uses the communicator, in a call or in a "
                           "group that is open");
    if (comm->polls > 0)
      refuse(ncclInvalidUsage,
             name +
                 "an earlier call on the communicator, which is not blocking, returned "
                 "ncclInProgress: ask ncclCommGetAsyncError until it tells of another state");
    if (const ncclResult_t error = comm->error; error != ncclSuccess)
      refuse(error, name + "its communicator has failed: " + process().failure_of(*comm));
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() { leave(); }

 private:
  void leave() const {
    if (group.depth == 0) comm_->thread = 0;
  }
  [[noreturn]] void refuse(ncclResult_t result, const std::string& text) const {
    leave();
    throw NcclMisuse(result, text);
  }
  ncclComm_t comm_;
};

// What the call returns for an error. The other ranks are told of one that concerns them.
ncclResult_t returned(const NcclMisuse& error, ncclComm_t comm) {
  const std::string text = std::string("simt: ") + error.what();
  if (error.lasting) {
    process().fail(*comm, error.result, comm->rank,
                   comm->board->name_of(comm->rank) + " has failed: " + text);
    for (const ncclComm_t living : process().living()) living->board->leave_exchange();
  }
  process().note_error(text);
  return error.result;
}

// A communicator that is not blocking tells later of the success of a call.
ncclResult_t success_of(ncclComm& comm) {
  if (comm.blocking) return ncclSuccess;
  comm.polls = 2;
  return ncclInProgress;
}

// Does the work of a call on a communicator, outside of groups or in them.
template <class Work>
ncclResult_t on_communicator(ncclComm_t comm, const std::string& call, Work work) {
  try {
    const Use use(comm, call);
    return work();
  } catch (const NcclMisuse& error) {
    return returned(error, comm);
  }
}

void require_no_group(const std::string& call) {
  if (group.depth > 0)
    throw NcclMisuse(ncclInvalidUsage,
                     call + ": the group that " + group.opened +
                         " has opened is not closed; in a group, this call is not simulated");
}
}  // namespace

// ------------------------------------------------------------------------------------------------- transfers
namespace {
void enqueue(const std::vector<NcclCall>& calls) {
  ncclComm& comm = *calls.front().comm;
  const Stream stream = calls.front().stream;
  StreamQueues& queues = StreamQueues::instance();
  const bool is_recorded = stream && queues.is_recording(*stream);
  std::vector<Stream> others;
  for (const NcclCall& call : calls)
    if (call.stream && call.stream != stream) others.push_back(call.stream);
  // Transfers of a communicator run one after the other, in whatever streams they are.
  if (stream && !is_recorded && comm.latest_stream != stream) queues.await(*stream, comm.latest);
  for (const Stream other : others) {
    EventState reached;
    queues.record(reached, *other);
    if (stream) queues.await(*stream, reached);
  }
  for (const NcclCall& call : calls)
    for (const NcclRange& range : ranges_of(call))
      note_access(stream, range.data, range.bytes, range.writes,
                  (range.what + (" of " + call.text())).c_str());
  const auto transfer = std::make_shared<NcclTransfer>(calls);
  enqueue_work(stream, [transfer] { transfer->poison(); });
  enqueue_work(stream, [transfer] { transfer->run(); });
  if (!stream || is_recorded) return;
  comm.latest_stream = stream;
  queues.record(comm.latest, *stream);
  for (const Stream other : others) queues.await(*other, comm.latest);
}

// Whether a call waits here until the other ranks have made it.
bool blocks(const NcclCall& call) {
  const Options& chosen = options();
  const std::uint64_t seed = mixed(chosen.seed, static_cast<std::uint64_t>(call.comm->first_rank));
  return chosen.nccl_block == NcclBlock::always ||
         (chosen.nccl_block == NcclBlock::random && mixed(seed, ~call.number) % 2 == 0);
}

void fail_as_planned(const NcclCall& call) {
  const NcclFailure& planned = options().nccl_failure;
  if (planned.rank != call.comm->first_rank || planned.call != call.number) return;
  if (planned.fault == NcclFault::error)
    throw NcclMisuse(ncclSystemError,
                     call.comm->name() + ", " + call.text() + ": the error that nccl_failure asks for");
  if (planned.fault == NcclFault::async)
    process().fail_alone(*call.comm, ncclRemoteError,
                         "simt: " + call.comm->name() + ", " + call.text() +
                             ": the asynchronous error that nccl_failure asks for");
}

// Starts the calls of a group. Communicators follow each other in the same order on all ranks.
ncclResult_t start(std::vector<NcclCall> calls, const std::string& end) {
  check_group(calls, end);
  compare_with_others(calls);
  std::for_each(calls.begin(), calls.end(), require_simulated);
  if (std::any_of(calls.begin(), calls.end(), blocks)) {
    StreamQueues::instance().finish_all();
    await_others(calls);
  }
  std::map<std::uint64_t, std::vector<NcclCall>> by_communicator;
  for (const NcclCall& call : calls) {
    fail_as_planned(call);
    by_communicator[call.comm->board->digits()].push_back(call);
  }
  ncclResult_t result = ncclSuccess;
  for (const auto& [digits, of_one] : by_communicator) {
    enqueue(of_one);
    result = std::max(result, success_of(*of_one.front().comm));
  }
  return result;
}

// Makes a call, or leaves it to ncclGroupEnd.
ncclResult_t transfer(NcclCall call) {
  const ncclResult_t result = on_communicator(call.comm, call.text(), [&] {
    call.number = process().next_call();
    check_arguments(call);
    if (call.stream) {
      const auto uses = StreamQueues::instance().uses(call.stream);
      if (!uses)
        throw NcclMisuse(ncclInvalidArgument, call.comm->name() + ", " + call.text() + ": no such stream");
      call.stream_uses = *uses;
    }
    if (group.depth == 0) return start({call}, "it returned");
    group.calls.push_back(call);
    return ncclSuccess;
  });
  if (group.depth > 0 && group.error == ncclSuccess) group.error = result;
  return result;
}

}  // namespace

ncclResult_t ncclGroupStart(Where where) {
  if (group.depth++ == 0) {
    group.opened = call_text("ncclGroupStart", where);
    process().open_group(group.opened);
  }
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd(Where where) {
  const std::string end = call_text("ncclGroupEnd", where);
  if (group.depth == 0)
    return returned(NcclMisuse(ncclInvalidUsage, end + ": no group of this thread is open"), nullptr);
  if (--group.depth > 0) return ncclSuccess;
  const Group ended = std::exchange(group, {});
  process().open_group("");
  struct Release {
    const std::vector<NcclCall>& calls;
    ~Release() {
      for (const NcclCall& call : calls) call.comm->thread = 0;
    }
  } const release{ended.calls};
  if (ended.error != ncclSuccess || ended.calls.empty()) return ended.error;
  try {
    return start(ended.calls, end);
  } catch (const NcclMisuse& error) {
    return returned(error, ended.calls.front().comm);
  }
}

ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      Stream stream, Where where) {
  return transfer({NcclKind::send, send, nullptr, count, type, ncclSum, peer, comm, stream, where});
}
ncclResult_t ncclRecv(void* receive, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      Stream stream, Where where) {
  return transfer({NcclKind::receive, nullptr, receive, count, type, ncclSum, peer, comm, stream, where});
}
ncclResult_t ncclAlltoAll(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                          ncclComm_t comm, Stream stream, Where where) {
  return transfer({NcclKind::all_to_all, send, receive, count, type, ncclSum, -1, comm, stream, where});
}
ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, Stream stream, Where where) {
  return transfer({NcclKind::all_gather, send, receive, count, type, ncclSum, -1, comm, stream, where});
}
ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, Stream stream, Where where) {
  return transfer({NcclKind::broadcast, send, receive, count, type, ncclSum, root, comm, stream, where});
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t comm, Stream stream, Where where) {
  return transfer({NcclKind::reduce_scatter, send, receive, count, type, operation, -1, comm, stream, where});
}

// -------------------------------------------------------------------------------------------------
// communicators
namespace {
constexpr char id_prefix[] = "goat-simt ";

std::uint64_t digits_of(const ncclUniqueId& id, const std::string& call) {
  const char *begin = id.internal + sizeof id_prefix - 1, *end = id.internal + sizeof id.internal;
  std::uint64_t digits = 0;
  if (std::strncmp(id.internal, id_prefix, sizeof id_prefix - 1) != 0 ||
      std::from_chars(begin, end, digits).ec != std::errc{})
    throw NcclMisuse(ncclInvalidArgument, call + ": the id is not one of ncclGetUniqueId");
  return digits;
}

bool is_blocking(const ncclConfig_t& config, const std::string& call) {
  const ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;
  if (config.size != fresh.size || config.magic != fresh.magic)
    throw NcclMisuse(ncclInvalidArgument, call + ": the config does not begin as NCCL_CONFIG_INITIALIZER");
  return config.blocking != 0;
}

// Attaches to the other ranks; sets `result` when all have come.
void create(ncclComm_t& result, std::uint64_t digits, std::unique_ptr<ncclComm> comm) {
  const std::string who = comm->name() + ", " + comm->made + ": ";
  try {
    comm->board = std::make_shared<NcclBoard>(digits, comm->rank, comm->size);
  } catch (const RankLost& error) {
    throw NcclMisuse(ncclRemoteError, who + error.what());
  } catch (const std::exception& error) {
    throw NcclMisuse(ncclSystemError, who + error.what());
  }
  result = process().add(std::move(comm));
}
}  // namespace

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (!id) return returned(NcclMisuse(ncclInvalidArgument, "ncclGetUniqueId: the id is null"), nullptr);
  std::random_device random;
  const std::uint64_t number = std::uint64_t{random()} << 32 | random();
  const std::string text = id_prefix + std::to_string(mixed(number, static_cast<std::uint64_t>(getpid())));
  *id = {};
  text.copy(id->internal, sizeof id->internal - 1);
  return ncclSuccess;
}

void remove_shared_names(const std::string& id) noexcept {
  ncclUniqueId words{};
  id.copy(words.internal, sizeof words.internal);
  try {
    NcclBoard::remove_names(digits_of(words, "remove_shared_names"));
  } catch (const NcclMisuse&) {  // no id: there are no names
  }
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* result, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config, Where where) {
  const std::string call = call_text("ncclCommInitRankConfig", where);
  try {
    require_no_group(call);
    if (!result) throw NcclMisuse(ncclInvalidArgument, call + ": the communicator's address is null");
    if (size < 1 || rank < 0 || rank >= size)
      throw NcclMisuse(ncclInvalidArgument, call + ": rank " + std::to_string(rank) + " of " +
                                                std::to_string(size) + " ranks: expected 0 <= rank < ranks");
    const std::uint64_t digits = digits_of(id, call);
    auto comm = std::make_unique<ncclComm>();
    comm->rank = comm->first_rank = rank;
    comm->size = size;
    comm->made = call;
    comm->blocking = !config || is_blocking(*config, call);
    if (!process().use_id(digits))
      throw NcclMisuse(ncclInvalidUsage, comm->name() + ", " + call +
                                             ": this process has used the id before; each communicator needs "
                                             "one of its own");
    create(*result, digits, std::move(comm));
    return success_of(**result);
  } catch (const NcclMisuse& error) {
    return returned(error, nullptr);
  }
}

namespace {
struct Choice {
  int color, key, rank;
};

// What all ranks have chosen; in the order of the new ranks, those of this rank's color.
std::vector<Choice> members_of(const ncclComm& comm, const Choice& own, const std::string& call) {
  std::vector<Choice> members;
  try {
    for (const auto& bytes : comm.board->exchange().gather(std::as_bytes(std::span(&own, 1)))) {
      Choice choice{};
      std::memcpy(&choice, bytes.data(), sizeof choice);
      if (choice.color == own.color) members.push_back(choice);
    }
  } catch (const std::exception& error) {
    std::string text = error.what();
    for (int r = 0; r < comm.size; ++r)  // what the others say themselves says more
      if (const auto lost = comm.board->lost(r, "this rank waited for it"); lost && r != comm.rank)
        text = lost->what();
    throw NcclMisuse(ncclRemoteError, comm.name() + ", " + call + ": " + text);
  }
  std::sort(members.begin(), members.end(), [](const Choice& a, const Choice& b) {
    return std::tie(a.key, a.rank) < std::tie(b.key, b.rank);
  });
  return members;
}
}  // namespace

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* result, ncclConfig_t* config,
                           Where where) {
  const std::string call = call_text("ncclCommSplit", where);
  return on_communicator(comm, call, [&] {
    require_no_group(call);
    if (!result || (color < 0 && color != NCCL_SPLIT_NOCOLOR))
      throw NcclMisuse(ncclInvalidArgument,
                       comm->name() + ", " + call + ": color " + std::to_string(color) +
                           ": expected 0 or more, or NCCL_SPLIT_NOCOLOR, and an address");
    auto part = std::make_unique<ncclComm>();
    part->blocking = config ? is_blocking(*config, call) : comm->blocking;
    std::vector<NcclCall> calls(1);
    calls[0].kind = NcclKind::split;
    calls[0].root = -1;
    calls[0].comm = comm;
    calls[0].where = where;
    compare_with_others(calls);
    StreamQueues::instance().finish_all();
    const std::vector<Choice> members = members_of(*comm, {color, key, comm->rank}, call);
    const std::uint64_t family = mixed(comm->board->digits(), ++comm->splits);
    *result = nullptr;
    if (color == NCCL_SPLIT_NOCOLOR) return success_of(*comm);
    const auto own = std::find_if(members.begin(), members.end(),
                                  [&](const Choice& member) { return member.rank == comm->rank; });
    part->rank = static_cast<int>(own - members.begin());
    part->size = static_cast<int>(members.size());
    part->first_rank = comm->first_rank;
    part->made = call;
    create(*result, mixed(family, static_cast<std::uint64_t>(color)), std::move(part));
    success_of(**result);
    return success_of(*comm);
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm, Where where) {
  const std::string call = call_text("ncclCommFinalize", where);
  return on_communicator(comm, call, [&] {
    require_no_group(call);
    StreamQueues::instance().finish_all();
    comm->board->leave();
    process().end(*comm, call);
    return comm->error == ncclSuccess ? success_of(*comm) : comm->error.load();
  });
}

namespace {
// Whether ncclCommDestroy or ncclCommAbort may follow.
void require_not_destroyed(ncclComm_t comm, const std::string& call) {
  if (!process().is_known(comm))
    throw NcclMisuse(ncclInvalidArgument, call + ": the communicator is null, or no communicator");
  if (comm->ended && !process().end_of(*comm).starts_with("ncclCommFinalize"))
    throw NcclMisuse(ncclInvalidArgument, comm->name() + ", " + call + ": its communicator has ended by " +
                                              process().end_of(*comm));
}
}  // namespace

// One that has failed is destroyed too, and returns its error: NCCL may wait for ever.
ncclResult_t ncclCommDestroy(ncclComm_t comm, Where where) {
  const std::string call = call_text("ncclCommDestroy", where);
  try {
    require_not_destroyed(comm, call);
    require_no_group(call);
    if (comm->polls > 0 || comm->thread != 0)
      throw NcclMisuse(ncclInvalidUsage, comm->name() + ", " + call +
                                             (comm->polls > 0 ? ": its state is still ncclInProgress: ask "
                                                                "ncclCommGetAsyncError until it is another"
                                                              : ": another thread uses the communicator"));
    if (!comm->ended && comm->error == ncclSuccess) StreamQueues::instance().finish_all();
    comm->board->leave();
    process().end(*comm, call);
    comm->aborted = true;
    comm->board.reset();
    return comm->error;
  } catch (const NcclMisuse& error) {
    return returned(error, comm);
  }
}

ncclResult_t ncclCommAbort(ncclComm_t comm, Where where) {
  const std::string call = call_text("ncclCommAbort", where);
  try {
    require_not_destroyed(comm, call);
    process().end(*comm, call);
    comm->board->fail(comm->rank,
                      comm->board->name_of(comm->rank) + " has aborted its communicator: " + call);
    comm->aborted = true;
    return ncclSuccess;
  } catch (const NcclMisuse& error) {
    return returned(error, comm);
  }
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  try {
    require_not_destroyed(comm, "ncclCommGetAsyncError");
  } catch (const NcclMisuse& misuse) {
    return returned(misuse, comm);
  }
  *error = comm->error;
  if (*error != ncclSuccess)
    comm->polls = 0;
  else if (comm->polls > 0 && --comm->polls > 0)
    *error = ncclInProgress;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* count, Where where) {
  return on_communicator(comm, call_text("ncclCommCount", where), [&] {
    *count = comm->size;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank, Where where) {
  return on_communicator(comm, call_text("ncclCommUserRank", where), [&] {
    *rank = comm->rank;
    return ncclSuccess;
  });
}

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "the simulated GPU has failed";
    case ncclSystemError: return "the system has failed";
    case ncclInternalError: return "the simulated NCCL has failed";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "another rank has ended or failed";
    case ncclInProgress: return "in progress";
    case ncclNumResults: break;
  }
  return "unknown result";
}

const char* ncclGetLastError(ncclComm_t) {
  thread_local std::string text;
  text = process().last_error();
  return text.c_str();
}

}  // namespace goat::on_simt
