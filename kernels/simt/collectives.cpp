// The rendezvous of a warp's lanes, and the shuffles and votes that run in it.
#include <bit>

#include "kernels/simt/races.h"
#include "kernels/simt/report.h"
#include "kernels/simt/scheduler.h"
#include "kernels/simt/warp.h"

namespace goat::on_simt {

namespace {

template <class Visit>
inline void for_each_lane(std::uint32_t mask, Visit visit) {
  for (; mask; mask &= mask - 1) visit(std::countr_zero(mask));
}

// The rendezvous of the lanes of `mask`: one under way, or an unused one without arrived lanes.
inline Rendezvous& meeting_of(Warp& warp, std::uint32_t mask) {
  Rendezvous& usual = warp.rendezvous[0];
  if (warp.meetings == 0 || (usual.arrived && usual.mask == mask)) [[likely]]
    return usual;
  Rendezvous* unused = nullptr;
  for (Rendezvous& candidate : warp.rendezvous) {
    if (candidate.arrived && candidate.mask == mask) return candidate;
    if (!candidate.arrived && !unused) unused = &candidate;
  }
  return *unused;  // there is one: each other rendezvous holds a waiting lane
}

[[noreturn, gnu::noinline]] void fail_at_collective(const Worker& worker, const Thread& self,
                                                    const Rendezvous& meeting, std::uint32_t mask) {
  const Warp& warp = worker.warps[self.warp];
  const std::string here = source_place(self.code);
  const std::uint32_t missing = mask & (warp.finished | ~warp.existing);
  if (!(mask >> self.lane & 1))
    fail(formatted("warp divergence: lane %u calls a collective whose mask %08x does not name it, at ",
                   self.lane, mask) +
         here);
  if (missing)
    fail(
        formatted("warp divergence: the mask %08x names lanes that have returned or do not exist (%08x), at ",
                  mask, missing) +
        here);
  const Thread& first =
      worker.threads[self.warp * 32u + static_cast<unsigned>(std::countr_zero(meeting.arrived))];
  fail(formatted(
           "warp divergence: lanes of one warp with the same mask %08x are at different collectives, at ",
           mask) +
       here + " and at " + source_place(first.code));
}

// Called by the last lane to arrive: executes the operation for all lanes. This lane continues; the
// others become ready.
[[gnu::noinline]] void complete_meeting(Worker& worker, const Thread& self, Warp& warp, Rendezvous& meeting) {
  ++worker.counters.collectives;
  meeting.operation(warp.argument, meeting.mask);
  meeting.arrived = 0;
  warp.awaited = 0;
  if (--warp.meetings != 0) [[unlikely]]
    for (const Rendezvous& other : warp.rendezvous)
      if (other.arrived) warp.awaited |= other.mask;
  worker.make_ready(self.warp, meeting.mask & ~(1u << self.lane));
}

inline void arrive(Worker& worker, Thread& self, Warp& warp, Rendezvous& meeting, void* argument) {
  warp.argument[self.lane] = argument;
  meeting.arrived |= 1u << self.lane;
  if (meeting.arrived == meeting.mask) return complete_meeting(worker, self, warp, meeting);
  self.waiting = Waiting::in_collective;
  worker.suspend();
}

[[gnu::noinline]] void start_or_find_meeting(std::uint32_t mask, Collective operation, void* argument,
                                             int line) {
  Worker& worker = *current_worker;
  Thread& self = *current_thread;
  Warp& warp = worker.warps[self.warp];
  Rendezvous& meeting = meeting_of(warp, mask);
  if (!(mask >> self.lane & 1)) fail_at_collective(worker, self, meeting, mask);
  if (!meeting.arrived) {
    if (mask & (warp.finished | ~warp.existing)) fail_at_collective(worker, self, meeting, mask);
    meeting.mask = mask;
    meeting.operation = operation;
    meeting.line = line;
    warp.awaited |= mask;
    ++warp.meetings;
  } else if (meeting.operation != operation || meeting.line != line) {
    fail_at_collective(worker, self, meeting, mask);
  }
  arrive(worker, self, warp, meeting, argument);
}

}  // namespace

// Nearly every call joins the rendezvous in rendezvous[0]. There are only tail calls, here and in suspend(),
// so that this path saves no registers.
void collective(std::uint32_t mask, Collective operation, void* argument, int line) {
  Worker& worker = *current_worker;
  Thread& self = *current_thread;
  Warp& warp = worker.warps[self.warp];
  Rendezvous& usual = warp.rendezvous[0];
  self.code = __builtin_return_address(0);
  if (usual.arrived && usual.mask == mask && (mask >> self.lane & 1) && usual.operation == operation &&
      usual.line == line) [[likely]]
    return arrive(worker, self, warp, usual, argument);
  start_or_find_meeting(mask, operation, argument, line);
}

std::string place_that_awaits(const Worker& worker, const Thread& thread) {
  for (const Rendezvous& meeting : worker.warps[thread.warp].rendezvous)
    if (meeting.arrived && (meeting.mask >> thread.lane & 1))
      return source_place(
          worker.threads[thread.warp * 32u + static_cast<unsigned>(std::countr_zero(meeting.arrived))].code);
  return "an unknown place";
}

void synchronize_lanes(void**, std::uint32_t mask) {
  Worker& worker = *current_worker;
  if (!worker.races) return;
  std::uint32_t numbers[32];
  std::size_t count = 0;
  for_each_lane(
      mask, [&](int lane) { numbers[count++] = current_thread->warp * 32u + static_cast<unsigned>(lane); });
  worker.races->synchronize(numbers, count);
}

// ---- shuffles

void bad_shuffle_width(int width) {
  fail(formatted("shuffle: the width %d is not a power of two up to 32, at ", width) +
       source_place(__builtin_return_address(0)));
}

namespace {

// Each lane receives the value of the lane source(lane, parameter, first, width). `first` is the first
// lane of the segment of `width` lanes that holds `lane`. For a lane outside its segment, `source`
// returns `lane` itself.
template <class Source>
inline void shuffle_lanes(void** argument, std::uint32_t mask, Source source) {
  const auto receive = [&](int lane) {
    Shuffle& own = *static_cast<Shuffle*>(argument[lane]);
    const int from = source(lane, own.parameter, lane & ~(own.width - 1), own.width);
    if (!(mask >> from & 1)) [[unlikely]]
      fail(formatted("shuffle: lane %d reads lane %d, which the mask %08x does not name, at ", lane, from,
                     mask) +
           source_place(current_thread->code));
    own.received = static_cast<const Shuffle*>(argument[from])->bits;
  };
  if (mask == 0xFFFFFFFFu)
    for (int lane = 0; lane < 32; ++lane) receive(lane);
  else
    for_each_lane(mask, receive);
}

}  // namespace

void shuffle_indexed(void** argument, std::uint32_t mask) {
  shuffle_lanes(argument, mask,
                [](int, int parameter, int first, int width) { return first + (parameter & (width - 1)); });
}
// May read from earlier segments, but not from later ones.
void shuffle_xor(void** argument, std::uint32_t mask) {
  shuffle_lanes(argument, mask, [](int lane, int parameter, int first, int width) {
    const int from = lane ^ (parameter & 31);
    return from < first + width ? from : lane;
  });
}
void shuffle_down(void** argument, std::uint32_t mask) {
  shuffle_lanes(argument, mask, [](int lane, int parameter, int first, int width) {
    return lane + (parameter & 31) < first + width ? lane + (parameter & 31) : lane;
  });
}
void shuffle_up(void** argument, std::uint32_t mask) {
  shuffle_lanes(argument, mask, [](int lane, int parameter, int first, int) {
    return lane - (parameter & 31) >= first ? lane - (parameter & 31) : lane;
  });
}

// ---- votes

void ballot(void** argument, std::uint32_t mask) {
  std::uint32_t result = 0;
  for_each_lane(mask, [&](int lane) { result |= static_cast<const Ballot*>(argument[lane])->vote << lane; });
  for_each_lane(mask, [&](int lane) { static_cast<Ballot*>(argument[lane])->result = result; });
}

void match_any(void** argument, std::uint32_t mask) {
  for_each_lane(mask, [&](int lane) {
    LaneValue& own = *static_cast<LaneValue*>(argument[lane]);
    own.result = 0;
    for_each_lane(mask, [&](int other) {
      own.result |=
          static_cast<std::uint32_t>(static_cast<const LaneValue*>(argument[other])->value == own.value)
          << other;
    });
  });
}

}  // namespace goat::on_simt
