#include "test/tested_device.h"
#include "kernels/open/open_device.h"

#include <algorithm>
#include <stdexcept>

#ifdef GOAT_HAS_SIMT
#include "kernels/simt/options.h"
#endif

namespace goat::test {

namespace {
// The guard behind is long, so that an operation that needs several times the memory spoils no other data.
constexpr std::size_t guard_before = 256, guard_behind = std::size_t{1} << 18;
constexpr std::size_t most_compared_bytes = std::size_t{1} << 20;

// A workspace of some bytes between guard bytes, all 0xFF: NaN for floats, -1 for integers.
class GuardedWorkspace {
 public:
  GuardedWorkspace(Device& device, std::size_t bytes)
      : device_(device), buffer_(device, guard_before + bytes + guard_behind), bytes_(bytes) {
    const std::vector<unsigned char> poison(buffer_.bytes(), 0xFF);
    device.upload(buffer_.data(), poison.data(), poison.size());
  }

  WorkspaceMemory memory() const {
    return {static_cast<unsigned char*>(buffer_.data()) + guard_before, bytes_};
  }
  WorkspaceMemory one_byte_less() const { return {memory().data, bytes_ - 1}; }

  bool guards_are_intact() const {
    std::vector<unsigned char> guards(guard_before + guard_behind);
    const auto* first = static_cast<const unsigned char*>(buffer_.data());
    device_.download(guards.data(), first, guard_before);
    device_.download(guards.data() + guard_before, first + guard_before + bytes_, guard_behind);
    return std::all_of(guards.begin(), guards.end(), [](unsigned char byte) { return byte == 0xFF; });
  }

 private:
  Device& device_;
  DeviceBuffer buffer_;
  std::size_t bytes_;
};

// What the device says when it runs the operation in this workspace; "" if it does.
template <class Operation>
std::string complaint_of(Device& device, const Operation& op, WorkspaceMemory memory) {
  const WorkspaceScope scope(device, memory);
  try {
    device.run(op);
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

// Without those that share memory with a written one.
std::vector<MemoryAccess> unwritten(const std::vector<MemoryAccess>& accesses) {
  const auto first = [](const MemoryAccess& access) { return static_cast<const char*>(access.memory); };
  std::vector<MemoryAccess> result;
  for (const MemoryAccess& access : accesses)
    if (std::none_of(accesses.begin(), accesses.end(), [&](const MemoryAccess& other) {
          return other.writes && first(access) < first(other) + other.bytes &&
                 first(other) < first(access) + access.bytes;
        }))
      result.push_back(access);
  return result;
}

template <class Operation>
bool is_deterministic(const Operation& op) {
  if constexpr (requires { op.deterministic; }) return op.deterministic;
  return true;
}
}  // namespace

void* TestedDevice::allocate(std::size_t bytes) {
  void* memory = inner_->allocate(bytes);
  allocations_.emplace(memory, bytes);
  return memory;
}

void TestedDevice::release(void* memory) noexcept {
  allocations_.erase(memory);
  inner_->release(memory);
}

std::unique_ptr<DeviceGraph> TestedDevice::capture(const std::function<void()>& work) {
  return inner_->capture([&] {
    struct Capturing {
      bool& flag;
      ~Capturing() { flag = false; }
    } const capturing{capturing_};
    capturing_ = true;
    work();
  });
}

template <class Operation>
void TestedDevice::run_checked(const Operation& op) {
  if (capturing_) return inner_->run(op);
  if (runs_late() || !can_compare()) return run_in_workspace(op);
  const std::vector<MemoryAccess> inputs = unwritten(accesses_of([&] { check(op); }));
  const Contents before = contents_of(inputs);
  run_in_workspace(op);
  const Contents after = contents_of(inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (after[i] != before[i])
      throw std::runtime_error(inputs[i].what + " changes, but is not called written");
}

template <class Operation>
void TestedDevice::run_in_workspace(const Operation& op) {
  const std::string name = name_of(op);
  const std::size_t bytes = inner_->workspace(op);
  if (bytes == 0) return inner_->run(op);
  const GuardedWorkspace workspace(*inner_, bytes);
  const std::string complaint = complaint_of(*inner_, op, workspace.one_byte_less());
  if (!complaint.starts_with(name + ": needs a workspace of " + std::to_string(bytes) + " bytes"))
    throw std::runtime_error(name + ": in a workspace that is too small: '" + complaint + "'");
  const bool compare = is_deterministic(op) && can_compare();
  const Contents before = compare ? contents() : Contents{};
  {
    const WorkspaceScope scope(*inner_, workspace.memory());
    inner_->run(op);
  }
  if (!workspace.guards_are_intact()) throw std::runtime_error(name + ": written outside its workspace");
  if (!compare) return;
  const Contents result = contents();
  restore(before);
  inner_->run(op);  // in memory without guards, so only now
  if (contents() != result)
    throw std::runtime_error(name + ": another result than without a given workspace");
}

#define GOAT_DEFINE_LAUNCH(Operation, name) \
  void TestedDevice::launch(const Operation& op) { run_checked(op); }
GOAT_FOR_EACH_OPERATION(GOAT_DEFINE_LAUNCH)
#undef GOAT_DEFINE_LAUNCH

// With AddressSanitizer the guard bands of operands cannot be read.
bool TestedDevice::can_compare() const {
#ifdef __SANITIZE_ADDRESS__
  return false;
#else
  std::size_t bytes = 0;
  for (const auto& [memory, size] : allocations_) bytes += size;
  return bytes <= most_compared_bytes;
#endif
}

// Then a download would change when work runs.
bool TestedDevice::runs_late() const {
#ifdef GOAT_HAS_SIMT
  return info().name == "simt" && on_simt::options().streams != on_simt::Streams::at_once;
#else
  return false;
#endif
}

TestedDevice::Contents TestedDevice::contents_of(const std::vector<MemoryAccess>& accesses) {
  Contents all;
  for (const MemoryAccess& access : accesses)
    inner_->download(all.emplace_back(access.bytes).data(), access.memory, access.bytes);
  return all;
}

TestedDevice::Contents TestedDevice::contents() {
  Contents all;
  for (const auto& [memory, bytes] : allocations_)
    inner_->download(all.emplace_back(bytes).data(), memory, bytes);
  return all;
}

void TestedDevice::restore(const Contents& contents) {
  std::size_t next = 0;
  for (const auto& [memory, bytes] : allocations_) inner_->upload(memory, contents[next++].data(), bytes);
}

std::unique_ptr<Device> open_tested(const std::string& name) {
  return std::make_unique<TestedDevice>(open_device(name));
}

}  // namespace goat::test
