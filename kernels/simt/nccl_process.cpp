// The communicators of this process, and its errors.
#include <cstdio>
#include <cstdlib>

#include "kernels/simt/nccl_comm.h"
#include "kernels/simt/options.h"

namespace goat::on_simt {

// Never destroyed, so that communicators of static duration may be.
NcclProcess& NcclProcess::instance() {
  static NcclProcess& process = *[] {
    std::atexit([] { instance().report_leaks(); });
    return new NcclProcess;
  }();
  return process;
}

ncclComm_t NcclProcess::add(std::unique_ptr<ncclComm> comm) {
  const std::lock_guard lock(mutex_);
  return comms_.emplace_back(std::move(comm)).get();
}

std::vector<ncclComm_t> NcclProcess::living() {
  const std::lock_guard lock(mutex_);
  std::vector<ncclComm_t> result;
  for (const auto& comm : comms_)
    if (!comm->ended) result.push_back(comm.get());
  return result;
}

bool NcclProcess::is_known(const ncclComm* comm) {
  const std::lock_guard lock(mutex_);
  for (const auto& known : comms_)
    if (known.get() == comm) return true;
  return false;
}

bool NcclProcess::use_id(std::uint64_t digits) {
  const std::lock_guard lock(mutex_);
  return ids_.insert(digits).second;
}

void NcclProcess::note_error(const std::string& text) {
  const std::lock_guard lock(mutex_);
  last_error_ = text;
}

std::string NcclProcess::last_error() {
  const std::lock_guard lock(mutex_);
  return last_error_;
}

void NcclProcess::fail(ncclComm& failed, ncclResult_t result, int lost, const std::string& text) {
  const std::lock_guard lock(mutex_);
  last_error_ = text;
  for (const auto& comm : comms_) {
    if (comm->ended || comm->error != ncclSuccess) continue;
    comm->failure = text;
    comm->error = result;
    comm->board->fail(comm.get() == &failed ? lost : comm->rank, text);
  }
}

void NcclProcess::fail_alone(ncclComm& comm, ncclResult_t result, const std::string& text) {
  const std::lock_guard lock(mutex_);
  comm.failure = text;
  comm.error = result;
}

std::string NcclProcess::failure_of(const ncclComm& comm) {
  const std::lock_guard lock(mutex_);
  return comm.failure;
}

void NcclProcess::end(ncclComm& comm, const std::string& by) {
  const std::lock_guard lock(mutex_);
  comm.ended_by = by;
  comm.ended = true;
}

std::string NcclProcess::end_of(const ncclComm& comm) {
  const std::lock_guard lock(mutex_);
  return comm.ended_by;
}

void NcclProcess::open_group(const std::string& by) {
  const std::lock_guard lock(mutex_);
  open_group_ = by;
}

void NcclProcess::report_leaks() {
  if (!options().leaks) return;
  const std::lock_guard lock(mutex_);
  for (const auto& comm : comms_)
    if (comm->ended_by.empty() || comm->ended_by.starts_with("ncclCommFinalize"))
      std::fprintf(stderr, "simt: the communicator of %s, %s, was never destroyed\n", comm->made.c_str(),
                   comm->name().c_str());
  if (!open_group_.empty())
    std::fprintf(stderr, "simt: the group that %s has opened was never closed\n", open_group_.c_str());
}

void require_not_aborted(const ncclComm& comm, const std::string& where) {
  if (!comm.aborted) return;
  throw std::runtime_error("simt: " + comm.name() + ", " + where + ": its communicator has ended by " +
                           NcclProcess::instance().end_of(comm));
}

}  // namespace goat::on_simt
