// MemoryPlan: every tensor of a run is first given a name and a size. Then each category is allocated
// as one block.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <string>

#include "kernels/device.h"

namespace goat {

enum class MemoryCategory { parameters, gradients, optimizer, activations, workspace };
inline constexpr std::array memory_categories = {MemoryCategory::parameters, MemoryCategory::gradients,
                                                 MemoryCategory::optimizer, MemoryCategory::activations,
                                                 MemoryCategory::workspace};
const char* name_of(MemoryCategory category);

class MemoryPlan {
 public:
  // Plans a contiguous tensor. `view` gets its shape at once and its data in allocate(). Until then it
  // must not move.
  void add(MemoryCategory category, std::string name, DType dtype, std::initializer_list<std::int64_t> shape,
           Tensor& view);

  // Plans the temporary memory of the operations that `passes` runs, as `view`: call it after every add()
  // that they need and before allocate(). They run on a survey of the device (kernels/workspace_survey.h),
  // which computes nothing; meanwhile the planned tensors have addresses that nothing may read. `passes` must
  // bind what keeps copies of planned tensors, here and again after allocate(), and must not allocate.
  void add_workspace(const Device& device, const std::function<void(Device&)>& passes, Tensor& view);

  std::size_t bytes(MemoryCategory category) const;
  std::size_t total_bytes() const;

  // What to do if the plan does not fit: a sentence without its full stop. Called only then.
  using Advice = std::function<std::string()>;
  // allocate() allocates everything, filled with zeros. require_fits() allocates nothing: it compares the
  // plans of so many processes that share the device's memory with what is available. Both throw
  // std::runtime_error if the plan does not fit. The message gives the size of each category, the largest
  // tensors and the advice.
  void require_fits(const Device& device, const Advice& advice, int processes = 1) const;
  void allocate(Device& device, const Advice& advice = {});

 private:
  struct Entry {
    MemoryCategory category;
    std::string name;
    std::size_t offset;
    Tensor* view;
  };
  // Gives every planned tensor its address, where the blocks of the categories begin at `bases`.
  void place(const std::array<char*, memory_categories.size()>& bases);
  [[noreturn]] void refuse(const Device& device, const std::string& reason, MemoryCategory category,
                           const Advice& advice) const;
  MemoryCategory largest_category() const;
  std::string largest_tensors(MemoryCategory category) const;

  std::deque<Entry> entries_;  // a deque, because views keep pointers to the names
  std::array<std::size_t, memory_categories.size()> bytes_{};
  std::array<DeviceBuffer, memory_categories.size()> blocks_;
};

// A planned workspace as a device takes it (Device::use_workspace).
inline WorkspaceMemory workspace_memory(const Tensor& view) { return {view.data, view.bytes()}; }

// "1.5 GiB"
std::string bytes_text(std::size_t bytes);

}  // namespace goat
