#include "kernels/simt/stream_order.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/simt/device_memory.h"
#include "kernels/simt/report.h"

namespace goat::on_simt {

namespace {
const unsigned char* first_of(const MemoryAccess& access) {
  return static_cast<const unsigned char*>(access.memory);
}
const unsigned char* end_of(const MemoryAccess& access) { return first_of(access) + access.bytes; }

bool overlap(const MemoryAccess& a, const MemoryAccess& b) {
  return std::max(first_of(a), first_of(b)) < std::min(end_of(a), end_of(b));
}
bool covers(const MemoryAccess& outer, const MemoryAccess& inner) {
  return first_of(outer) <= first_of(inner) && end_of(inner) <= end_of(outer);
}

std::uint64_t time_in(const Clock& clock, int stream) {
  const auto found = clock.find(stream);
  return found == clock.end() ? 0 : found->second;
}

void advance(Clock& clock, const Clock& to) {
  for (const auto& [stream, time] : to) clock[stream] = std::max(time_in(clock, stream), time);
}

// "bytes 0 to 63 of an allocation of 256 bytes"
std::string text_of_overlap(const MemoryAccess& a, const MemoryAccess& b) {
  const unsigned char *first = std::max(first_of(a), first_of(b)), *end = std::min(end_of(a), end_of(b));
  for (DeviceMemory* memory : {&DeviceMemory::instance(), &DeviceMemory::page_locked()})
    if (const Allocation* allocation = memory->find(first))
      return formatted("bytes %td to %td of an allocation of %zu bytes of %s", first - allocation->memory,
                       end - allocation->memory - 1, allocation->bytes, memory->kind());
  return formatted("%td bytes at %p", end - first, static_cast<const void*>(first));
}

std::string text_of_race(int earlier_stream, const MemoryAccess& earlier, int stream,
                         const MemoryAccess& access) {
  const auto verb = [](const MemoryAccess& of) { return of.writes ? "writes" : "reads"; };
  return formatted(
      "simt: streams race: '%s' on stream %d %s %s; '%s', which was enqueued before it on stream %d, %s "
      "them, "
      "and neither waits for the other: record an event after the first and let the second stream follow it",
      access.what.c_str(), stream, verb(access), text_of_overlap(earlier, access).c_str(),
      earlier.what.c_str(), earlier_stream, verb(earlier));
}
}  // namespace

void StreamOrder::add(int stream) { clocks_[stream][stream] = 1; }

void StreamOrder::remove(int stream) {
  clocks_.erase(stream);
  forget_what_all_are_behind();
  forget_streams();
}

Clock StreamOrder::record(int stream) {
  Clock& clock = clocks_.at(stream);
  const Clock event = clock;
  ++clock[stream];
  return event;
}

void StreamOrder::follow(int stream, const Clock& event) { advance(clocks_.at(stream), event); }
void StreamOrder::host_follows(const Clock& event) { advance(host_, event); }

std::uint64_t StreamOrder::time(int stream) const { return time_in(clocks_.at(stream), stream); }
bool StreamOrder::is_behind(int stream, int other, std::uint64_t time) const {
  return std::max(time_in(clocks_.at(stream), other), time_in(host_, other)) >= time;
}

void StreamOrder::note(int stream, std::span<const MemoryAccess> accesses) {
  for (const MemoryAccess& access : accesses)
    for (const Noted& earlier : history_)
      if (earlier.stream != stream && (access.writes || earlier.access.writes) &&
          overlap(access, earlier.access) && !is_behind(stream, earlier.stream, earlier.time))
        throw std::runtime_error(text_of_race(earlier.stream, earlier.access, stream, access));
  for (const MemoryAccess& access : accesses) {
    if (access.bytes == 0) continue;
    // Whoever is behind this access is behind the stream's earlier ones.
    std::erase_if(history_, [&](const Noted& earlier) {
      return earlier.stream == stream && covers(access, earlier.access) &&
             (access.writes || !earlier.access.writes);
    });
    history_.push_back({stream, time(stream), access});
  }
}

void StreamOrder::forget(const void* memory, std::size_t bytes) {
  const MemoryAccess range{memory, bytes, false, ""};
  std::erase_if(history_, [&](const Noted& noted) { return covers(range, noted.access); });
}

bool StreamOrder::all_are_behind(const Noted& noted) const {
  return std::all_of(clocks_.begin(), clocks_.end(), [&](const auto& stream) {
    return stream.first == noted.stream || is_behind(stream.first, noted.stream, noted.time);
  });
}

void StreamOrder::forget_what_all_are_behind() {
  std::erase_if(history_, [&](const Noted& noted) { return all_are_behind(noted); });
}

// Those that have ended and of which nothing is noted.
void StreamOrder::forget_streams() {
  const auto gone = [&](const auto& entry) {
    return !clocks_.contains(entry.first) &&
           std::none_of(history_.begin(), history_.end(),
                        [&](const Noted& noted) { return noted.stream == entry.first; });
  };
  std::erase_if(host_, gone);
  for (auto& [stream, clock] : clocks_) std::erase_if(clock, gone);
}

std::vector<MemoryAccess> StreamOrder::accesses() const {
  std::vector<MemoryAccess> all;
  for (const Noted& noted : history_) all.push_back(noted.access);
  return all;
}

}  // namespace goat::on_simt
